"""The paper's figure STD+ROB for any pair of models, and a figure of the confidence gaps.

The figures do not use pyplot, so drawing leaves no state behind and needs no display.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.panels import Panel, curves_panel, frontier_panel, gap_panel
from adaptive_smoothing.report.style import LIGHT, Style


def tradeoff_figure(
    stored: Tradeoff,
    live: Tradeoff | None = None,
    chosen_alpha: float | None = None,
    *,
    style: Style = LIGHT,
    paper: bool = True,
) -> Figure:
    """Return a figure of accuracy against alpha (left), and of clean against attacked accuracy (right).

    Args:
        stored: a run, drawn as lines.
        live: a smaller run, drawn as points with 95 % intervals in the same colours.
        paper: add the models of the paper, which were measured on CIFAR-10 at Linf 8/255.
    """
    curves = curves_panel(stored, live, chosen_alpha, style)
    return side_by_side([curves, frontier_panel(stored, chosen_alpha, style, paper=paper)], style)


def gap_figure(tradeoff: Tradeoff, alpha: float | None = None, *, style: Style = LIGHT) -> Figure:
    """Return histograms of the confidence gaps of h (left) and g (right), for correct and incorrect predictions."""
    return side_by_side([gap_panel(tradeoff, "h", alpha, style), gap_panel(tradeoff, "g", style=style)], style)


def side_by_side(panels: Sequence[Panel], style: Style = LIGHT) -> Figure:
    """Return one figure of one or more panels."""
    with matplotlib.rc_context(style.settings()):
        figure = Figure(figsize=(5.9 * len(panels), 4.6), layout="constrained")
        for position, panel in enumerate(panels, start=1):
            panel(figure.add_subplot(1, len(panels), position))
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Return the figure as SVG text. It has no date and no random ids, so equal figures give equal text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "adaptive_smoothing", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
