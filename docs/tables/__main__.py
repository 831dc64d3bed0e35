"""Write the tables of docs/results.md and README.md from the result files of this repository.

    python docs/tables            # rewrite what stands between <!-- table: NAME --> and <!-- end -->
    python docs/tables --check    # only say whether it is up to date
    python docs/tables --figures  # draw the figures of results/ again, too

No figure in those tables is typed by hand: cards stand beside the weights, runs of `adaptive-smoothing sweep` in
results/ (that of the demo inside the package), benchmarks in benchmarks/results/.
"""

import sys

from pages import main

sys.exit(main())
