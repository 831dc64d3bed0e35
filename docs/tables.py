"""Write the tables of docs/results.md from the result files of this repository.

    python docs/tables.py            # rewrite what stands between <!-- table: NAME --> and <!-- end -->
    python docs/tables.py --check    # only say whether it is up to date

No figure in those tables is typed by hand: cards stand beside the weights, runs of `adaptive-smoothing sweep` in
results/ (that of the demo inside the package), benchmarks in benchmarks/results/.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from adaptive_smoothing.cli.demo import STORED
from adaptive_smoothing.evaluation.stored import has_tradeoff, load_facts, load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import parameters
from adaptive_smoothing.report.story import Choice
from adaptive_smoothing.report.tables import PAPER_GAPS, Table, alpha_table, cost_table, gap_table, markdown
from adaptive_smoothing.results import read_json

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def models() -> Table:
    """Every stored model beside the paper's two."""
    rows = []
    for card in zoo.names().values():
        facts, test = card.card, card.card["figures"]["test"]
        rows.append(
            (
                card.name,
                card.architecture,
                f"{parameters(card) / 1e6:.2f} M",
                f"`recipes/{card.name}.toml`",
                f"{facts['seconds'] / 60:.1f}",
                percent(test["clean"]),
                percent(test["pgd20"]),
            )
        )
    for name, key in (("*the paper's g*", "g"), ("*the paper's h*", "h")):
        clean, attacked = PAPER_GAPS[f"{key} clean"][0], PAPER_GAPS[f"{key} pgd"][0]
        rows.append((name, "ResNet-18", "", "", "", percent(clean), percent(attacked)))
    columns = ("model", "architecture", "parameters", "recipe", "GPU minutes", "clean, %", "PGD-20, %")
    return Table("Models on the 10,000 test images", columns, tuple(rows))


def curve(pair: str) -> Table:
    """Accuracy against alpha."""
    choice = _choice(pair)
    return alpha_table(load_tradeoff(_folder(pair)), choice.alpha if choice else None)


def chosen(pair: str) -> Table:
    """The alpha for a wanted clean accuracy, and what it costs."""
    choice = _choice(pair)
    if choice is None:
        raise ValueError(f"expected results/{pair} to be a run with --clean-accuracy, got one without")
    return cost_table(load_tradeoff(_folder(pair)), choice)


def gaps(pair: str) -> Table:
    """The paper's tab:confidence."""
    return gap_table(load_tradeoff(_folder(pair)))


def training() -> Table:
    """Seconds of training, and of what comes between epochs."""
    measured = read_json(ROOT / "benchmarks/results/train.json")
    columns = ("recipe", "mode", "first epoch, s", "an epoch, s", "a checkpoint, s", "a validation, s")
    keys = ("first", "epoch", "checkpoint", "validation")
    rows = tuple((row["recipe"], row["mode"], *(f"{row[key]:.2f}" for key in keys)) for row in measured["rows"])
    return Table(f"Training on one {measured['device']}, torch {measured['torch']}", columns, rows)


def _folder(pair: str) -> Path:
    inside = STORED.with_name(pair)
    return inside if has_tradeoff(inside) else ROOT / "results" / pair


def _choice(pair: str) -> Choice | None:
    found = load_facts(_folder(pair)).get("choice")
    return Choice(**found) if found else None


TABLES = {"models": models, "training": training, "curve": curve, "chosen": chosen, "gaps": gaps}


def rewritten(text: str) -> str:
    """The page with every marked table made anew."""

    def table(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        kind, *pair = name.split()
        if kind not in TABLES:
            raise KeyError(f"expected one of {', '.join(TABLES)} in {PAGE.name}, got the mark {name!r}")
        return f"{begin}{markdown(TABLES[kind](*pair))}{end}"

    return MARKED.sub(table, text)


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before)
    if "--check" in sys.argv[1:]:
        print("up to date" if before == after else f"{PAGE.name} is out of date: python docs/tables.py")
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
