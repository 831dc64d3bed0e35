"""Several mixtures of one pair of classifiers at the same clean accuracies, measured by benchmarks/mixtures.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive_smoothing.results import read_json, read_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS


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
