"""The figure of an evaluation: the accuracy after each attack, and the margins of the attacked images."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.figures import side_by_side
from adaptive_smoothing.report.panels import Panel
from adaptive_smoothing.report.style import LIGHT, Style

BINS = 40


def waterfall_figure(verdict: Verdict, *, style: Style = LIGHT) -> Figure:
    """Return a figure of the accuracy after each attack (left), and of the margins of the images (right)."""
    return side_by_side([waterfall_panel(verdict, style), margin_panel(verdict, style)], style)


def waterfall_panel(verdict: Verdict, style: Style) -> Panel:
    """Return a panel with one bar per attack: the accuracy it leaves, and the share it fooled."""

    def draw(axes: Axes) -> None:
        steps = verdict.waterfall
        names = [stage_title(key) for key, _, _ in steps]
        left = [100 * share for _, _, share in steps]
        before = [100.0, *left[:-1]]
        places = range(len(steps))
        axes.barh(places, left, color=style.clean, height=0.7)
        axes.barh(places, [a - b for a, b in zip(before, left, strict=True)], left=left, color=style.mix, height=0.7)
        for place, (_, took, share) in enumerate(steps):
            # To the right of the bar: a short bar has no room for text.
            text = f"{100 * share:.2f} %" + (f"  (−{took:,})" if took else "")
            axes.text(before[place] + 1.5, place, text, va="center", fontsize=9)
        axes.set_yticks(list(places), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 145)
        axes.set_xticks(range(0, 101, 20))
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("accuracy left, %")
        axes.set_title(f"Accuracy after each attack, {len(verdict.labels):,} images")

    return draw


def _bins(values: np.ndarray) -> list[float]:
    """Return the edges of about forty bins over all values, one of them at zero."""
    low, high = min(0.0, values.min(initial=0.0)), max(0.0, values.max(initial=0.0))
    width = max((high - low) / BINS, 1e-3)
    return [width * edge for edge in range(math.floor(low / width), math.ceil(high / width) + 2)]


def margin_panel(verdict: Verdict, style: Style) -> Panel:
    """Return a histogram of the margin of the correct class on the worst version found of each image."""

    def draw(axes: Axes) -> None:
        robust, margin = verdict.robust_correct, -verdict.margin
        fooled = verdict.clean_correct & ~robust
        # An image that was not attacked has no worst version.
        known = margin.isfinite()
        bins = _bins(margin[verdict.clean_correct & known].numpy())
        for which, color, word in ((robust, style.clean, "robust"), (fooled, style.mix, "fooled")):
            axes.hist(margin[which & known].numpy(), bins=bins, color=color, label=f"{word}: {int(which.sum()):,}")
        axes.axvline(0, color=style.ink, linewidth=1)
        axes.set_xlabel("margin of the correct class on the worst version found, in logits")
        axes.set_ylabel("images")
        axes.set_title("Margins under attack")
        # Leave room for the legend above the bars.
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()

    return draw
