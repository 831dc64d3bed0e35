"""Mixtures of one pair side by side: what each leaves standing at the same clean accuracy (benchmarks/mixtures.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive_smoothing.results import read_json, read_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

# Two runs of one mixture may differ in the last bits: in so few of its answers.
SAME = 0.001


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

    def under_attacks_of(self, other: Self | None) -> Self:
        """The same mixture at the same setting, under the attacks of both."""
        if other is None:
            return self
        shared = min(len(self.clean), len(other.clean))
        if (self.clean[:shared] != other.clean[:shared]).mean() > SAME:
            raise ValueError(f"expected {self.mixture} to answer alike in both, got other answers: another dial?")
        images = min(len(self.stands), len(other.stands))
        stands = self.stands[:images] & other.stands[:images]
        further = {name: found for name, found in other.facts["attacks"].items() if name not in self.facts["attacks"]}
        return replace(self, stands=stands, facts=self.facts | {"attacks": self.facts["attacks"] | further})


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

    def with_attacks_of(self, other: Self) -> Self:
        """These mixtures, under the attacks of another comparison too where it has the same at the same setting."""
        if self._subject != other._subject:
            raise ValueError(f"expected two comparisons of the same, got {self._subject} and {other._subject}")
        theirs = {(point.mixture, point.wanted): point for point in other.points}
        points = (point.under_attacks_of(theirs.get((point.mixture, point.wanted))) for point in self.points)
        return replace(self, points=tuple(points))

    @property
    def _subject(self) -> dict[str, Any]:
        """What was attacked, apart from the mixtures: the models, the images, the threat."""
        settings = {name: value for name, value in self.facts["settings"].items() if name != "preset"}
        return {"models": self.facts["models"], **settings}

    def standing_at(self, mixture: str, accuracy: float) -> np.ndarray | None:
        """How often each image stands when a lot picks one of the two settings around this clean accuracy, so that the
        mixture has just that; nothing where the settings do not reach it."""
        points = self.mixtures[mixture]
        for low, high in pairwise(points):
            if low.accuracy <= accuracy <= high.accuracy:
                share = (accuracy - low.accuracy) / max(high.accuracy - low.accuracy, 1e-12)
                return (1 - share) * low.stands[: self.images] + share * high.stands[: self.images]
        return None

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
