"""The headline: clean and robust accuracy of g, h and three mixtures under the strongest attacks (table and figure)."""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib.axes import Axes
from places import RESULTS, comparison, percent, sweep

from adaptive_smoothing.evaluation.tradeoff import load_tradeoff
from adaptive_smoothing.evaluation.verdict import ROBUST
from adaptive_smoothing.report.figures import Panel, png, side_by_side
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import interval, read_rows

CLEAN_ACCURACY = 0.9
# Evaluations of g and h alone: the two APGD attacks of AutoAttack fool g on every image; h was attacked by all four.
ALONE = {"g": "verdicts/g-margin", "h": "verdicts/h-standard"}
COMPARED = "resnet18-frontier"
# The mixtures of the stored comparison, in the order of the table, with the names that readers see.
MIXTURES = {
    "best fixed alpha": "best fixed α",
    "MixedNUTS": "MixedNUTS",
    "ours": "ours (fine-tuned tail)",
}
TITLES = {"g": "g, standard classifier", "h": "h, robust classifier", **MIXTURES}


def base(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which images the base classifier g or h classifies correctly: clean, and under its strongest attack."""
    attacked = read_rows(RESULTS / ALONE[model] / "rows.npz")["fooled_by"] == ROBUST
    return load_tradeoff(sweep("resnet18")).rows[f"clean_{model}"], attacked


@cache
def correct_images() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return which images g, h and each mixture classify correctly: clean, and under their strongest attack."""
    points = {point.mixture: point for point in comparison(COMPARED).points if point.wanted == CLEAN_ACCURACY}
    mixtures = {name: (points[name].clean_correct, points[name].robust_correct) for name in MIXTURES}
    return {"g": base("g"), "h": base("h"), **mixtures}


def headline() -> Table:
    """Return the headline table: base classifiers, and mixtures at one clean accuracy."""
    correct = {TITLES[name]: both for name, both in correct_images().items()}
    ((clean_images, attacked_images),) = {(len(clean), len(robust)) for clean, robust in correct.values()}
    rows = tuple((title, _share(clean), _share(robust)) for title, (clean, robust) in correct.items())
    columns = ("ResNet-18 pair", f"clean, % ({clean_images:,} images)", f"robust, % ({attacked_images:,} images)")
    note = (
        "Robust: correct, and not fooled by any attack within Linf 8/255. Attacks: on mixtures `adaptive`, our "
        "strongest preset; on h AutoAttack; on g its two APGD attacks, which fool every image. Every mixture is set "
        "to 90 % clean accuracy on validation images. In brackets: 95 % intervals."
    )
    return Table("CIFAR-10: clean and robust accuracy under the strongest attacks", columns, rows, note)


def _share(correct: np.ndarray) -> str:
    low, high = interval(int(correct.sum()), len(correct))
    return f"{percent(correct.mean())} ({100 * low:.1f} to {100 * high:.1f})"


def headline_figure() -> bytes:
    """Return the headline as a picture: from h to g on the left, the mixtures with their intervals on the right."""
    return png(side_by_side([_overview(LIGHT), _mixtures(LIGHT, bars=True)]))


def _overview(style: Style) -> Panel:
    def draw(axes: Axes) -> None:
        ends = [[100 * part.mean() for part in base(model)] for model in ("g", "h")]
        axes.plot(*zip(*ends, strict=True), ":", color=style.faint, linewidth=1.2)
        axes.plot(*zip(*ends, strict=True), "o", color=style.ink, markersize=7)
        axes.annotate("g alone", ends[0], (-9, -1), textcoords="offset points", ha="right", va="center")
        axes.annotate("h alone", ends[1], (8, 4), textcoords="offset points", ha="left", va="bottom")
        middle = np.mean(ends, axis=0)
        axes.annotate("g or h, picked at random", middle, (-8, -4), textcoords="offset points", ha="right", va="top")
        _mixtures(style, bars=False)(axes)
        axes.set(ylim=(-2, 55), xlim=(82, 96), title="Two classifiers and their mixtures")
        axes.get_legend().remove()

    return draw


def _mixtures(style: Style, *, bars: bool) -> Panel:
    looks = ((style.faint, "o"), (style.clean, "D"), (style.mix, "s"))

    def draw(axes: Axes) -> None:
        compared = comparison(COMPARED)
        for (name, title), (color, marker) in zip(MIXTURES.items(), looks, strict=True):
            points = compared.mixtures[name]
            clean, robust = (100 * np.array([part.mean() for part in parts]) for parts in _parts(points))
            bounds = 100 * np.array(
                [interval(int(point.robust_correct.sum()), len(point.robust_correct)) for point in points]
            )
            around = np.abs(bounds.T - robust) if bars else None
            look = {"fmt": f"{marker}-", "color": color, "markersize": 6, "elinewidth": 0.8, "capsize": 2}
            axes.errorbar(clean, robust, yerr=around, label=title, **look)  # type: ignore[arg-type]
        axes.set(xlabel="clean accuracy, %", ylabel="robust accuracy, %", title="Mixtures, with 95 % intervals")
        axes.set_ylim(28, 52)
        axes.legend(loc="upper right")

    return draw


def _parts(points: list) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [point.clean_correct for point in points], [point.robust_correct for point in points]
