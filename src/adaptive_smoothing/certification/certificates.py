"""What a certification says of every image, and the curve it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_smoothing.results import interval

# Of the tables; curves have a step wherever an image ends.
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Certificates:
    """One entry per image in each of `rows`, and how they came about in `settings`.

    Rows: index, label, prediction, certified, radius (0 where nothing is certified), estimate (the radius if what was
    sampled were the truth, or what is only an estimate at all), samples, and what they were computed from. Where an
    image is certified its prediction is that of the certificate. A certificate of a method with samples is wrong with
    at most `settings["failure probability"]`, for each image.
    """

    rows: dict[str, np.ndarray]
    settings: dict[str, Any]

    @property
    def correct(self) -> np.ndarray:
        return self.rows["prediction"] == self.rows["label"]

    @property
    def clean(self) -> float:
        """Accuracy of the predictions, certified or not."""
        return float(self.correct.mean())

    @property
    def certified(self) -> np.ndarray:
        return self.rows["certified"]

    def accuracy(self, radius: float, *, estimated: bool = False) -> float:
        """The share of images that are right and have at least this radius: certified, or only estimated."""
        return float((self.correct & self._reaches(radius, estimated)).mean())

    def _reaches(self, radius: float, estimated: bool) -> np.ndarray:
        if estimated:
            return self.rows["estimate"] >= max(radius, np.finfo(float).tiny)
        return self.certified & (self.rows["radius"] >= radius)

    def curve(self, *, estimated: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Radii at which the certified accuracy falls, from 0 on, and what it is up to each of them."""
        found = self.rows["estimate" if estimated else "radius"]
        reached = np.sort(found[self.correct & self._reaches(0.0, estimated)])
        left = np.arange(len(reached), -1, -1) / len(self.correct)
        return np.concatenate([[0.0], reached]), left

    def table(self, radii: Sequence[float] = RADII) -> list[dict[str, float]]:
        rows = []
        for radius in radii:
            share = self.accuracy(radius)
            low, high = interval(round(share * len(self.correct)), len(self.correct))
            rows.append(
                {
                    "radius": radius,
                    "certified": share,
                    "low": low,
                    "high": high,
                    "estimate": self.accuracy(radius, estimated=True),
                }
            )
        return rows

    def summary(self) -> dict[str, Any]:
        """What `result.json` holds."""
        right = self.certified & self.correct
        return {
            "images": len(self.correct),
            "clean": {"accuracy": self.clean, "interval": interval(int(self.correct.sum()), len(self.correct))},
            "certified": {"images": int(self.certified.sum()), "right": int(right.sum())},
            "radius": {
                "mean": float(np.where(right, self.rows["radius"], 0.0).mean()),
                "largest": float(self.rows["radius"].max()),
            },
            "accuracy": self.table(),
            "samples": int(self.rows["samples"].sum()),
            "settings": self.settings,
        }
