"""Write the tables and values of the documents from the result files of this repository.

    python docs/tables            # rewrite <!-- table: NAME -->...<!-- end --> and <!-- value: NAME -->...<!-- -->
    python docs/tables --check    # only report whether the tables are up to date
    python docs/tables --figures  # also draw the figures of results/ again

Numbers that a new measurement would change are not typed by hand. Sources: the cards of the weights, the runs in
results/ (the run of the demo is in the package), and benchmarks/results/. Figures of the paper and of RobustBench are
constants.
"""

import sys

from pages import main

sys.exit(main())
