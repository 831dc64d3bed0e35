"""The pages with generated tables and values, and how they are rewritten."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import attack_tables
import base_tables
import certified_figures
import certified_tables
import command_line
import mixture_tables
from headline import headline, headline_figure
from places import COMPARED, RESULTS, ROOT, sweep
from values import VALUES

from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.tradeoff import load_tradeoff
from adaptive_smoothing.report.comparison import comparison_panel
from adaptive_smoothing.report.figures import png, side_by_side
from adaptive_smoothing.report.tables import Table, markdown
from adaptive_smoothing.report.tradeoff.figures import figures
from adaptive_smoothing.report.tradeoff.report import Report

PAIRS = ("resnet18", "compact")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
WIDTH = 120
MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MARKED_VALUE = re.compile(r"(<!-- value: (.+?) -->)(.*?)(<!-- -->)")
KINDS = (
    headline,
    base_tables.models,
    base_tables.parts,
    base_tables.training,
    base_tables.curve,
    base_tables.chosen,
    base_tables.held,
    base_tables.gaps,
    attack_tables.attacks,
    attack_tables.memory,
    attack_tables.verdicts,
    attack_tables.margins,
    attack_tables.consistency,
    attack_tables.objectives,
    attack_tables.arithmetic,
    mixture_tables.frontier,
    mixture_tables.leads,
    mixture_tables.kept,
    mixture_tables.mixtures,
    mixture_tables.losses,
    mixture_tables.overhead,
    certified_tables.coverage,
    certified_tables.needed,
    certified_tables.certified,
    certified_tables.soundness,
    certified_tables.certify_speed,
    certified_tables.sampling,
    certified_tables.local,
    command_line.verbs,
)
TABLES = {table.__name__: table for table in KINDS}


def rewritten(text: str) -> str:
    """Return a page with every marked table and every marked value made again."""
    return MARKED_VALUE.sub(_value, MARKED.sub(_table, text))


def _table(found: re.Match[str]) -> str:
    begin, name, _, end = found.groups()
    made = _made(TABLES, name)
    return f"{begin}{_wrapped(markdown(made) if isinstance(made, Table) else made)}{end}"


def _value(found: re.Match[str]) -> str:
    begin, name, _, end = found.groups()
    return f"{begin}{_made(VALUES, name)}{end}"


def _made(kinds: Mapping[str, Callable[..., Any]], name: str) -> Any:
    """Return what a mark asks for: the kind of the table or value, followed by its arguments."""
    kind, *arguments = name.split()
    if kind not in kinds:
        raise KeyError(f"expected one of {', '.join(kinds)}, got the mark {name!r}: correct the mark")
    return kinds[kind](*arguments)


def _wrapped(text: str) -> str:
    """Return Markdown with its lines wrapped, except for the rows of tables."""
    lines = [line if line.startswith("|") else textwrap.fill(line, WIDTH) for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def draw() -> None:
    """Draw the figures of results/ again."""
    (RESULTS / "headline.png").write_bytes(headline_figure())
    certified_figures.draw_all()
    attack_tables.draw_waterfalls()
    for pair in PAIRS:
        report = Report(load_tradeoff(sweep(pair)), choice=base_tables.chosen_alpha(pair))
        for name, figure in figures(report).items():
            (RESULTS / pair / f"{name}.png").write_bytes(png(figure))
    for folder in COMPARED.glob("*-frontier"):
        panel = comparison_panel(Comparison.read(folder))
        (folder / "figure.png").write_bytes(png(side_by_side([panel])))


def main() -> int:
    outdated = {}
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            outdated[page] = after
    if "--check" in sys.argv[1:]:
        names = ", ".join(page.name for page in outdated)
        print(f"out of date: {names}; run: python docs/tables" if outdated else "up to date")
        return int(bool(outdated))
    for page, after in outdated.items():
        page.write_text(after, encoding="utf-8")
    if "--figures" in sys.argv[1:]:
        draw()
    return 0
