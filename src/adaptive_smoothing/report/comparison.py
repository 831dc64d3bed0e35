"""Mixtures of one pair side by side: what each leaves standing at the same clean accuracy (benchmarks/mixtures.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from adaptive_smoothing.evaluation.stored import RESULT, ROWS
from adaptive_smoothing.report.panels import Panel, legend_below
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import difference, interval, read_json, read_rows

MARKERS = "os^Dv*"


@dataclass(frozen=True)
class Point:
    """One mixture at one setting of its dial: which images are right as they are, and under all attacks."""

    mixture: str
    wanted: float | None
    clean: np.ndarray
    stands: np.ndarray
    facts: dict[str, Any]

    @property
    def robust(self) -> float:
        return float(self.stands.mean())


@dataclass(frozen=True)
class Comparison:
    """What `benchmarks/mixtures.py` measured, in the order it was measured."""

    points: tuple[Point, ...]
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """A folder with result.json and rows.npz."""
        result, rows = read_json(Path(folder) / RESULT), read_rows(Path(folder) / ROWS)
        points = []
        for number, found in enumerate(result.pop("mixtures")):
            stands = np.logical_and.reduce([rows[f"{number}.{name}"][: found["of"]] for name in found["attacks"]])
            points.append(
                Point(found["mixture"], found.get("wanted"), rows[f"{number}.clean"].astype(bool), stands, found)
            )
        return cls(tuple(points), result)

    @cached_property
    def mixtures(self) -> dict[str, list[Point]]:
        """The points of each mixture, from the least accurate on."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.mixture, []).append(point)
        return {name: sorted(points, key=lambda point: point.clean.mean()) for name, points in found.items()}

    @property
    def images(self) -> int:
        """How many images were attacked in every way."""
        return min(len(point.stands) for point in self.points)


def comparison_panel(comparison: Comparison, style: Style = LIGHT) -> Panel:
    """Accuracy under all attacks against clean accuracy, a line each; bars are 95 % intervals."""

    def draw(axes: Axes) -> None:
        colors = (style.faint, style.std, style.rob, style.clean, style.mix, style.ink)
        for (name, points), color, marker in zip(comparison.mixtures.items(), colors, MARKERS, strict=False):
            clean, robust = (
                np.array([getattr(point, what).mean() for point in points]) for what in ("clean", "stands")
            )
            bounds = np.array([interval(int(point.stands.sum()), len(point.stands)) for point in points])
            around = np.stack([robust - bounds[:, 0], bounds[:, 1] - robust])
            look: dict[str, Any] = {"color": color, "markersize": 5, "elinewidth": 0.8, "capsize": 2}
            axes.errorbar(clean, robust, yerr=around, fmt=f"{marker}-", label=name, **look)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlabel="clean accuracy", ylabel="accuracy under all attacks")
        axes.set_title(f"{comparison.images:,} images, with 95 % intervals")
        legend_below(axes)

    return draw


def frontier_table(comparison: Comparison) -> Table:
    """One row a mixture, one column a wanted clean accuracy; beside it how far that is from the first mixture."""
    wanted = list(dict.fromkeys(point.wanted for point in comparison.points))
    at = {(point.mixture, point.wanted): point for point in comparison.points}
    first = next(iter(comparison.mixtures))
    rows = [
        (name, *(_cell(at.get((name, target)), at.get((first, target))) for target in wanted))
        for name in comparison.mixtures
    ]
    columns = ("mixture", *(f"at {100 * (target or 0):g} %" for target in wanted))
    note = (
        "Clean accuracy / accuracy under all attacks, %; in brackets how far the latter is from the first row, over "
        "the same images, with its 95 % interval."
    )
    return Table(f"Mixtures on {comparison.images:,} images", columns, tuple(rows), note)


def _cell(point: Point | None, first: Point | None) -> str:
    if point is None:
        return "–"
    found = f"{100 * point.clean.mean():.2f} / {100 * point.robust:.2f}"
    if first is None or first is point:
        return found
    ahead, half = (100 * number for number in difference(point.stands, first.stands))
    return f"{found} ({ahead:+.2f} ± {half:.2f})".replace("-", "−")


def attacks_table(comparison: Comparison) -> Table:
    """One row a mixture and setting, one column an attack."""
    attacks = list(dict.fromkeys(name for point in comparison.points for name in point.facts["attacks"]))
    rows = []
    for point in comparison.points:
        found = point.facts["attacks"]
        left = [f"{100 * found[name]['robust']:.2f}" if name in found else "–" for name in attacks]
        rows.append((point.mixture, f"{100 * point.clean.mean():.2f}", *left, f"{100 * point.robust:.2f}"))
    counts = {name: attack["images"] for point in comparison.points for name, attack in point.facts["attacks"].items()}
    images = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
    note = f"Images attacked: {images}; all of them on {comparison.images:,}."
    return Table("Mixtures under attack, %", ("mixture", "clean", *attacks, "all of them"), tuple(rows), note)
