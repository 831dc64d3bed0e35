"""Clean accuracy as a function of alpha, or of the shift of a learned alpha.

The mixture of an image is linear in alpha, so its label has the largest probability on one open interval of alphas. A
learned alpha increases with its shift, so the same holds for shifts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.results import read_rows, write_rows

# A mixture computed in float32 may miss an interval of settings that is narrower than this, relative to its position.
NARROW = 1e-6


@dataclass(frozen=True)
class CleanAccuracyCurve:
    """Clean accuracy at every setting: image i is classified correctly for settings strictly in (low[i], high[i]).

    A setting is an alpha or the shift of a learned alpha (`parameter`). `limits` are the first and the last
    setting to consider.
    """

    low: np.ndarray
    high: np.ndarray
    limits: tuple[float, float] = (0.0, 1.0)
    parameter: str = "alpha"

    def __call__(self, setting: float) -> float:
        return float(((self.low < setting) & (setting < self.high)).mean())

    def describe(self, setting: float) -> str:
        """Describe the accuracy at a setting and at both limits."""
        at, first, last = (f"{100 * self(place):.2f} % at {place:.4g}" for place in (setting, *self.limits))
        return f"clean accuracy on {len(self.low):,} images by {self.parameter}: {at} ({first}, {last})"

    def save(self, path: Path) -> None:
        """Write the curve to a file, from which the setting for any clean accuracy can be read without the models."""
        limits, parameter = np.array(self.limits), np.array(self.parameter)
        write_rows(path, {"low": self.low, "high": self.high, "span": limits, "dial": parameter})

    @classmethod
    def load(cls, path: Path) -> CleanAccuracyCurve:
        """Read a curve that `save` wrote."""
        columns = read_rows(path)
        first, last = columns.get("span", np.array(cls.limits)).tolist()  # early files are about alpha
        return cls(columns["low"], columns["high"], (first, last), str(columns.get("dial", cls.parameter)))

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return one setting in each interval of constant accuracy that float32 can resolve, and the accuracy there."""
        nonempty = self.low < self.high
        low, high = np.sort(self.low[nonempty]), np.sort(self.high[nonempty])
        ends = np.unique(np.concatenate([low, high, self.limits]).clip(*self.limits))
        middles = (ends[:-1] + ends[1:]) / 2
        wide = np.diff(ends) > NARROW * np.maximum(1, np.abs(middles))
        settings = np.concatenate([self.limits[:1], middles[wide], self.limits[1:]])
        count = np.searchsorted(low, settings, "left") - np.searchsorted(high, settings, "right")
        return settings, count / len(self.low)

    def best(self) -> float:
        """Return the largest clean accuracy of any setting."""
        return float(self.steps()[1].max())

    def reaches(self, target: float) -> bool:
        """Return whether any setting has at least the clean accuracy `target`."""
        check_share(target, "clean accuracy")
        return self.best() >= target

    def largest_setting(self, target: float) -> float:
        """Return the largest, and so most robust, setting with at least the clean accuracy `target`."""
        check_share(target, "clean accuracy")
        settings, accuracy = self.steps()
        if not (enough := settings[accuracy >= target]).size:
            best = int(accuracy.argmax())
            offer = math.floor(1000 * accuracy[best]) / 1000  # rounded down, so that the offer can be reached
            raise ValueError(
                f"expected a clean accuracy this pair can reach, got {target:.4g}: the best on {len(self.low):,} "
                f"images is {offer:.3f}, at {self.parameter} {settings[best]:.3f}; ask for at most that"
            )
        return float(enough[-1])


def check_share(target: float, name: str) -> None:
    if not 0 < target <= 1:
        raise ValueError(f"expected a {name} in (0, 1], such as 0.9, got {target}")


def correct_interval(g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each image the open interval of alphas where (1 - alpha) g + alpha h is largest at its label.

    Args:
        g, h: probabilities [N, C].

    An image that is correct at no alpha gets low >= high, or NaN if its probabilities have a NaN. The interval of an
    image that is correct at alpha = 0 or 1 extends beyond that end.
    """
    lead_g = g.gather(1, labels[:, None]) - g
    lead_h = h.gather(1, labels[:, None]) - h
    ahead_g, ahead_h = lead_g > 0, lead_h > 0
    crossing = lead_g / (lead_g - lead_h)
    high = torch.where(ahead_g & ~ahead_h, crossing, torch.inf)
    low = torch.where(~ahead_g & ahead_h, crossing, -torch.inf)
    low = torch.where(~ahead_g & ~ahead_h, torch.inf, low)
    label = torch.zeros_like(g, dtype=torch.bool).scatter(1, labels[:, None], True)
    return low.masked_fill(label, -torch.inf).amax(1), high.masked_fill(label, torch.inf).amin(1)
