"""The pages with tables, and what stands between their marks."""

from __future__ import annotations

import re
import sys

import attack_tables
import base_tables
import certified_figures
import certified_tables
import mixture_tables
from places import COMPARED, RESULTS, ROOT, sweep

from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.tradeoff_files import load_tradeoff
from adaptive_smoothing.report.figures import png, side_by_side
from adaptive_smoothing.report.panels import comparison_panel
from adaptive_smoothing.report.run_folder import figures
from adaptive_smoothing.report.sentences import Report
from adaptive_smoothing.report.tables import markdown

PAIRS = ("resnet18", "compact")
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
KINDS = (
    base_tables.models,
    base_tables.candidates,
    base_tables.training,
    attack_tables.attacks,
    attack_tables.verdicts,
    attack_tables.margins,
    attack_tables.consistency,
    attack_tables.objectives,
    mixture_tables.frontier,
    mixture_tables.leads,
    mixture_tables.kept,
    mixture_tables.mixtures,
    mixture_tables.losses,
    mixture_tables.overhead,
    attack_tables.arithmetic,
    base_tables.pair,
    base_tables.curve,
    base_tables.chosen,
    base_tables.held,
    base_tables.gaps,
    certified_tables.coverage,
    certified_tables.needed,
    certified_tables.certified,
    certified_tables.soundness,
    certified_tables.certify_speed,
    certified_tables.sampling,
    certified_tables.local,
)
TABLES = {table.__name__: table for table in KINDS}


def rewritten(text: str) -> str:
    """The page with every marked table made anew."""

    def table(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        kind, *pair = name.split()
        if kind not in TABLES:
            raise KeyError(f"expected one of {', '.join(TABLES)}, got the mark {name!r}")
        return f"{begin}{markdown(TABLES[kind](*pair))}{end}"

    return MARKED.sub(table, text)


def draw(pair: str) -> None:
    """figure.png and gaps.png of a stored run, as `sweep` draws them."""
    for name, figure in figures(Report(load_tradeoff(sweep(pair)), choice=base_tables.chosen_alpha(pair))).items():
        (RESULTS / pair / f"{name}.png").write_bytes(png(figure))


def main() -> int:
    old = {}
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            old[page] = after
    if "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(page.name for page in old)}: python docs/tables" if old else "up to date")
        return int(bool(old))
    for page, after in old.items():
        page.write_text(after, encoding="utf-8")
    if "--figures" in sys.argv[1:]:
        for pair in PAIRS:
            draw(pair)
        certified_figures.draw_all()
        for folder in COMPARED.glob("*-frontier"):
            panel = comparison_panel(Comparison.read(folder))
            (folder / "figure.png").write_bytes(png(side_by_side([panel])))
    return 0
