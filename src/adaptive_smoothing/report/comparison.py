"""A comparison of several mixtures: a table and a figure."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.report.figures import Panel, error_bars, legend_below, percent_axes
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import difference, signed_points

MARKERS = "os^Dv*"


def frontier_table(comparison: Comparison) -> Table:
    """Return one row per mixture, one column per wanted clean accuracy, with differences from the first mixture."""
    wanted = sorted({point.wanted for point in comparison.points}, key=lambda target: target or 0)
    at = {(point.mixture, point.wanted): point for point in comparison.points}
    first = next(iter(comparison.mixtures))
    rows = [
        (name, *(_cell(at.get((name, target)), at.get((first, target))) for target in wanted))
        for name in comparison.mixtures
    ]
    columns = ("mixture", *("untuned" if target is None else f"at {100 * target:g} %" for target in wanted))
    note = (
        "Clean accuracy / accuracy under all attacks, %. In brackets: difference of the latter from the first row, on "
        "the same images, with its 95 % interval."
    )
    return Table(f"Mixtures under attack, {comparison.images:,} images", columns, tuple(rows), note)


def _cell(point: Point | None, first: Point | None) -> str:
    if point is None:
        return "–"
    found = f"{100 * point.accuracy:.2f} / {100 * point.robust:.2f}"
    if first is None or first is point:
        return found
    return f"{found} ({gain(point.robust_correct, first.robust_correct)})"


def gain(mine: np.ndarray, theirs: np.ndarray) -> str:
    """Return the difference of two accuracies on the images of both, in points, with its 95 % interval.

    Each run attacked the first images of a data set, maybe more of them than another.
    """
    images = min(len(mine), len(theirs))
    ahead, half = difference(mine[:images], theirs[:images])
    return f"{signed_points(ahead, 2)} ± {100 * half:.2f}"


def comparison_panel(comparison: Comparison, style: Style = LIGHT) -> Panel:
    """Return a panel of robust against clean accuracy, one line per mixture, with 95 % intervals."""

    def draw(axes: Axes) -> None:
        colors = (style.faint, style.std, style.rob, style.clean, style.mix, style.ink)
        looks = cycle(zip(colors, MARKERS, strict=True))
        for (name, points), (color, marker) in zip(comparison.mixtures.items(), looks, strict=False):
            look: dict[str, Any] = {"color": color, "markersize": 5, "elinewidth": 0.8, "label": name}
            rows = [point.robust_correct for point in points]
            error_bars(axes, [point.accuracy for point in points], rows, fmt=f"{marker}-", **look)
        percent_axes(axes, FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
        axes.set(xlabel="clean accuracy", ylabel="accuracy under all attacks")
        axes.set_title(f"{comparison.images:,} images, with 95 % intervals")
        legend_below(axes)

    return draw
