"""Figures of one or more panels side by side, and what panels have in common.

The figures do not use pyplot, so drawing leaves no state behind and needs no display.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator
from numpy.typing import ArrayLike

from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.results import interval

# Draws one panel of a figure.
Panel = Callable[[Axes], None]


def side_by_side(panels: Sequence[Panel], style: Style = LIGHT) -> Figure:
    """Return one figure of one or more panels."""
    with matplotlib.rc_context(style.settings()):
        figure = Figure(figsize=(5.9 * len(panels), 4.6), layout="constrained")
        for position, panel in enumerate(panels, start=1):
            panel(figure.add_subplot(1, len(panels), position))
    return figure


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Return the figure as SVG text. It has no date and no random ids, so equal figures give equal text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "adaptive_smoothing", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def error_bars(axes: Axes, places: ArrayLike, correct: Iterable[np.ndarray], **look: Any) -> None:
    """Draw the accuracy of each row of correct images, with its 95 % interval."""
    accuracy, low, high = np.array([(row.mean(), *interval(int(row.sum()), len(row))) for row in correct]).T
    axes.errorbar(places, accuracy, yerr=np.stack([accuracy - low, high - accuracy]).clip(0), capsize=2, **look)


def percent_axes(axes: Axes, formatter: Formatter) -> None:
    """Put about seven ticks on both axes, and format them."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(formatter)


def legend_below(axes: Axes, columns: int = 2) -> None:
    """Draw the legend below the panel."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)
