"""Several mixtures of one pair at the same clean accuracies, as measured by benchmarks/mixtures.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive_smoothing.results import read_json, read_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

# Two runs of one mixture may differ in this share of their predictions, because of rounding.
SAME = 0.001


@dataclass(frozen=True)
class Point:
    """One mixture at one operating point: which images are correct without an attack and under all attacks."""

    mixture: str
    wanted: float | None  # the clean accuracy that it was tuned to on validation images
    clean_correct: np.ndarray
    robust_correct: np.ndarray
    facts: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.clean_correct.mean())

    @property
    def robust(self) -> float:
        return float(self.robust_correct.mean())

    def under_attacks_of(self, other: Self | None) -> Self:
        """Return this point under its own attacks and those of another measurement of it."""
        if other is None:
            return self
        shared = min(len(self.clean_correct), len(other.clean_correct))
        if (self.clean_correct[:shared] != other.clean_correct[:shared]).mean() > SAME:
            raise ValueError(
                f"expected the same predictions of {self.mixture} in both runs, got different ones: was it at another "
                "operating point?"
            )
        images = min(len(self.robust_correct), len(other.robust_correct))
        correct = self.robust_correct[:images] & other.robust_correct[:images]
        # Attacks of this point come first, as columns of tables, and keep their own figures.
        attacks = self.facts["attacks"] | other.facts["attacks"] | self.facts["attacks"]
        return replace(self, robust_correct=correct, facts=self.facts | {"attacks": attacks})


@dataclass(frozen=True)
class Comparison:
    """All points of a run of benchmarks/mixtures.py, in the order they were measured."""

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
        # The models, the images and the threat have to be the same, the attacks need not.
        subjects = [{"models": run.facts["models"], **run.facts["settings"]} for run in (self, other)]
        for subject in subjects:
            subject.pop("preset", None)
        if subjects[0] != subjects[1]:
            raise ValueError(f"expected two comparisons of the same, got {subjects[0]} and {subjects[1]}")
        theirs = {(point.mixture, point.wanted): point for point in other.points}
        points = (point.under_attacks_of(theirs.get((point.mixture, point.wanted))) for point in self.points)
        return replace(self, points=tuple(points))

    def robust_at(self, mixture: str, accuracy: float) -> np.ndarray | None:
        """Return how likely each image is robust at this clean accuracy, or None if the points do not reach it."""
        # For each image one of the two neighbouring points is chosen at random, with the clean accuracy as given.
        for low, high in pairwise(self.mixtures[mixture]):
            if low.accuracy <= accuracy <= high.accuracy:
                share = (accuracy - low.accuracy) / max(high.accuracy - low.accuracy, 1e-12)
                return (1 - share) * low.robust_correct[: self.images] + share * high.robust_correct[: self.images]
        return None


@dataclass(frozen=True)
class LearnedAlphaResult:
    """A stored comparison that starts with a fixed alpha and ends with a learned one, and a new measurement of it."""

    comparison: Comparison
    measured: Point | None = None

    def compare_with_fixed(self, wanted: float) -> tuple[Point, Point]:
        """Return the points of the learned and of the fixed alpha at about this clean accuracy."""
        fixed, *_, learned = (
            min(points, key=lambda point: abs((point.wanted or 0) - wanted))
            for points in self.comparison.mixtures.values()
        )
        return learned, fixed
