"""Mixtures of one pair side by side: what each leaves standing at the same clean accuracy (benchmarks/mixtures.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive_smoothing.evaluation.stored import RESULT, ROWS
from adaptive_smoothing.results import read_json, read_rows


@dataclass(frozen=True)
class Point:
    """One mixture at one setting of its dial: which images are right as they are, and under all attacks."""

    mixture: str
    wanted: float | None
    clean: np.ndarray
    stands: np.ndarray
    facts: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """On images as they are."""
        return float(self.clean.mean())

    @property
    def robust(self) -> float:
        """On images under all attacks."""
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
        return {name: sorted(points, key=lambda point: point.accuracy) for name, points in found.items()}

    @property
    def images(self) -> int:
        """How many images were attacked in every way."""
        return min(len(point.stands) for point in self.points)

    def nearest(self, mixture: str, wanted: float) -> Point:
        """The setting of a mixture that was tuned to the accuracy closest to the wanted one."""
        return min(self.mixtures[mixture], key=lambda point: abs((point.wanted or 0) - wanted))


@dataclass(frozen=True)
class Learned:
    """A learned alpha, last in a comparison that begins with a fixed one, and what an attack of just now left of it."""

    comparison: Comparison
    now: Point | None = None

    def beside_fixed(self, wanted: float) -> tuple[Point, Point]:
        """The learned and the fixed alpha at about this clean accuracy."""
        fixed, *_, ours = self.comparison.mixtures
        return self.comparison.nearest(ours, wanted), self.comparison.nearest(fixed, wanted)
