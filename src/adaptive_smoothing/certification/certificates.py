"""The result of a certification: one row per image, from which curves and tables are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_smoothing.results import interval

# Radii of the table in result.json.
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Certificates:
    """The result of `certify`.

    The certificate of an image is wrong with at most the probability `settings["failure probability"]`.

    Args:
        rows: columns with one entry per image: index, label, prediction (of certified images, that of the
            certificate), certified, radius (0 where nothing is certified), estimate (the radius if the sampled means
            were exact, or of a method that only estimates), samples, and the numbers that they were computed from.
        settings: everything the result depends on.
    """

    rows: dict[str, np.ndarray]
    settings: dict[str, Any]

    @property
    def correct(self) -> np.ndarray:
        return self.rows["prediction"] == self.rows["label"]

    @property
    def clean(self) -> float:
        """The accuracy of all predictions, certified or not."""
        return float(self.correct.mean())

    @property
    def certified(self) -> np.ndarray:
        return self.rows["certified"]

    def accuracy(self, radius: float, *, estimated: bool = False) -> float:
        """Return the share of images that are correct with at least this radius, certified or only estimated."""
        return float((self.correct & self._reaches(radius, estimated)).mean())

    def _reaches(self, radius: float, estimated: bool) -> np.ndarray:
        if estimated:
            return self.rows["estimate"] >= max(radius, np.finfo(float).tiny)
        return self.certified & (self.rows["radius"] >= radius)

    def curve(self, *, estimated: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the radii at which the certified accuracy falls, from 0 on, and the accuracy up to each of them."""
        found = self.rows["estimate" if estimated else "radius"]
        reached = np.sort(found[self.correct & self._reaches(0.0, estimated)])
        left = np.arange(len(reached), -1, -1) / len(self.correct)
        return np.concatenate([[0.0], reached]), left

    def table(self, radii: Sequence[float] = RADII) -> list[dict[str, float]]:
        """Return the certified accuracy at each radius, its 95 % interval, and the estimated accuracy."""
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
        """Return the content of result.json."""
        correct = self.certified & self.correct
        return {
            "images": len(self.correct),
            "clean": {"accuracy": self.clean, "interval": interval(int(self.correct.sum()), len(self.correct))},
            "certified": {"images": int(self.certified.sum()), "right": int(correct.sum())},
            "radius": {
                "mean": float(np.where(correct, self.rows["radius"], 0.0).mean()),
                "largest": float(self.rows["radius"].max()),
            },
            "accuracy": self.table(),
            "samples": int(self.rows["samples"].sum()),
            "settings": self.settings,
        }
