"""A table of text, and how it is printed in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import rich.box
import rich.table

from adaptive_smoothing.evaluation.gaps import GapStatistics
from adaptive_smoothing.results import percent

GAP_COLUMNS = ("", "accuracy", "correct: mean", "median", "incorrect: mean", "median")
# The gap of fewer predictions is not shown.
FEW_GAPS = 5


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. The first column names the row, the others hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def rich_table(table: Table) -> rich.table.Table:
    """Return the table for the terminal."""
    drawn = rich.table.Table(
        title=table.title,
        caption=table.note or None,
        box=rich.box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    for position, column in enumerate(table.columns):
        cells = [row[position] for row in table.rows]
        # A name is not broken, because it could be mistaken for another one; a title of several words may be. A cell
        # may have lines of its own.
        keep_lines = (position == 0 and not any(" " in cell for cell in cells)) or any("\n" in cell for cell in cells)
        drawn.add_column(column, justify="right" if position else "left", no_wrap=keep_lines, overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    ruler = ("---", *["---:"] * (len(table.columns) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, ruler, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", table.note] if table.note else [])]) + "\n"


def gap_statistics_table(gaps: Mapping[str, GapStatistics], images: int, note: str, *, digits: int = 1) -> Table:
    """Return the confidence gaps of correct and incorrect predictions, one row per entry of `gaps`.

    Args:
        images: number of images of each row.
        digits: decimals of the accuracy in percent.
    """
    rows = []
    for name, statistics in gaps.items():
        accuracy = statistics["accuracy"] or 0.0
        correct = _gap_cells(statistics, "right", round(accuracy * images))
        incorrect = _gap_cells(statistics, "wrong", round((1 - accuracy) * images))
        rows.append((name, percent(accuracy, digits), *correct, *incorrect))
    return Table("Confidence gaps", GAP_COLUMNS, tuple(rows), f"{note} –: fewer than {FEW_GAPS} images.")


def _gap_cells(gaps: GapStatistics, predictions: str, count: int) -> list[str]:
    """Return the mean and the median gap of the `right` or `wrong` predictions; dashes if there are too few."""
    values = [gaps[f"{predictions}_{statistic}"] if count >= FEW_GAPS else None for statistic in ("mean", "median")]
    return ["–" if value is None else f"{value:.3f}" for value in values]
