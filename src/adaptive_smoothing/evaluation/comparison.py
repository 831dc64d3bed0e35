"""Several mixtures of one pair of classifiers at the same clean accuracies, measured by benchmarks/mixtures.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive_smoothing.results import read_json, read_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

# Because of rounding, two runs of one mixture may differ in this share of their predictions.
ROUNDING_SHARE = 0.001


@dataclass(frozen=True)
class Point:
    """One mixture at one operating point: which images are correct without an attack and under all attacks."""

    mixture: str
    wanted: float | None  # the clean accuracy that the mixture was tuned to on validation images
    clean_correct: np.ndarray
    robust_correct: np.ndarray
    facts: dict[str, Any]  # figures and settings, as plain data

    @property
    def accuracy(self) -> float:
        return float(self.clean_correct.mean())

    @property
    def robust(self) -> float:
        return float(self.robust_correct.mean())

    def under_attacks_of(self, other: Self | None) -> Self:
        """Return this point under its own attacks and under those of another measurement of the same mixture."""
        if other is None:
            return self
        shared = min(len(self.clean_correct), len(other.clean_correct))
        if (self.clean_correct[:shared] != other.clean_correct[:shared]).mean() > ROUNDING_SHARE:
            raise ValueError(
                f"expected the same predictions of {self.mixture} in both runs, got different ones: measure it again "
                "at the same operating point"
            )
        images = min(len(self.robust_correct), len(other.robust_correct))
        correct = self.robust_correct[:images] & other.robust_correct[:images]
        # In tables, the attacks of this point come first. Where both have an attack, the figures of this point count.
        attacks = self.facts["attacks"] | other.facts["attacks"] | self.facts["attacks"]
        return replace(self, robust_correct=correct, facts=self.facts | {"attacks": attacks})


@dataclass(frozen=True)
class Comparison:
    """All points of a run of benchmarks/mixtures.py, in the order in which they were measured."""

    points: tuple[Point, ...]
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Read a folder with result.json and rows.npz."""
        result, rows = read_json(Path(folder) / RESULT), read_rows(Path(folder) / ROWS)
        points = []
        for number, found in enumerate(result.pop("mixtures")):
            clean = rows[f"{number}.clean"].astype(bool)
            robust = np.logical_and.reduce([rows[f"{number}.{name}"][: found["of"]] for name in found["attacks"]])
            points.append(Point(found["mixture"], found.get("wanted"), clean, robust, found))
        return cls(tuple(points), result)

    @cached_property
    def mixtures(self) -> dict[str, list[Point]]:
        """The points of each mixture, by increasing clean accuracy."""
        found: dict[str, list[Point]] = {point.mixture: [] for point in self.points}
        for point in sorted(self.points, key=lambda point: point.accuracy):
            found[point.mixture].append(point)
        return found

    @property
    def images(self) -> int:
        """Number of images that were attacked at every point."""
        return min(len(point.robust_correct) for point in self.points)

    def with_attacks_of(self, other: Self) -> Self:
        """Return these points, also under the attacks of another comparison where it has the same point."""
        mine, theirs = ({"models": run.facts["models"], **run.facts["settings"]} for run in (self, other))
        if mine | {"preset": None} != theirs | {"preset": None}:
            raise ValueError(f"expected two comparisons that differ in their preset only, got {mine} and {theirs}")
        others = {(point.mixture, point.wanted): point for point in other.points}
        points = (point.under_attacks_of(others.get((point.mixture, point.wanted))) for point in self.points)
        return replace(self, points=tuple(points))

    def robust_at(self, mixture: str, accuracy: float) -> np.ndarray | None:
        """Return the probability that each image is robust at a clean accuracy between two points of a mixture.

        One of the two points is chosen at random for each image, so that the expected clean accuracy is the given one.
        None if there are no such points.
        """
        for low, high in pairwise(self.mixtures[mixture]):
            if low.accuracy <= accuracy <= high.accuracy:
                share = (accuracy - low.accuracy) / max(high.accuracy - low.accuracy, 1e-12)
                return (1 - share) * low.robust_correct[: self.images] + share * high.robust_correct[: self.images]
        return None


@dataclass(frozen=True)
class LearnedAlphaResult:
    """A stored comparison whose first mixture has a fixed alpha and whose last has a learned one.

    Args:
        measured: a new measurement of the learned alpha.
    """

    comparison: Comparison
    measured: Point | None = None

    def compare_with_fixed(self, wanted: float) -> tuple[Point, Point]:
        """Return the points of the learned and of the fixed alpha at about this clean accuracy."""
        fixed, *_, learned = (
            min(points, key=lambda point: abs((point.wanted or 0) - wanted))
            for points in self.comparison.mixtures.values()
        )
        return learned, fixed
