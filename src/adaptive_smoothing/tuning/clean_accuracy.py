"""Clean accuracy as a function of a dial, from the settings between which each image is right.

The mixture of an image is linear in alpha, so it is classified right on one interval of alphas; a learned alpha rises
with its shift, so that interval is one of shifts, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.results import read_rows, write_rows

# A stretch of settings narrower than this share of them may be missed by a mixture that computes in float32.
NARROW = 1e-6


@dataclass(frozen=True)
class CleanAccuracyCurve:
    """Clean accuracy as a function of a dial: each image is right for settings strictly between `low` and `high`.

    The dial is alpha, or the shift of a learned alpha. `span` are the first and the last setting worth asking for.
    """

    low: np.ndarray
    high: np.ndarray
    span: tuple[float, float] = (0.0, 1.0)
    dial: str = "alpha"

    def __call__(self, setting: float) -> float:
        return float(((self.low < setting) & (setting < self.high)).mean())

    def told(self, setting: float) -> str:
        """The accuracy there, beside those at both ends, which is what it costs."""
        at = [f"{100 * self(place):.2f} % at {place:.4g}" for place in (setting, *self.span)]
        return f"clean accuracy on {len(self.low):,} images by {self.dial}: {at[0]}, of {at[1]} to {at[2]}"

    def save(self, path: Path) -> None:
        """From this file the setting for any clean accuracy can be read without the models."""
        columns = {"low": self.low, "high": self.high, "span": np.array(self.span), "dial": np.array(self.dial)}
        write_rows(path, columns)

    @classmethod
    def load(cls, path: Path) -> CleanAccuracyCurve:
        columns = read_rows(path)
        first, last = columns.get("span", np.array(cls.span)).tolist()  # early files are about alpha
        return cls(columns["low"], columns["high"], (first, last), str(columns.get("dial", cls.dial)))

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Settings, one inside each stretch of constant accuracy that float32 can hit, and the accuracy there."""
        somewhere = self.low < self.high
        low, high = np.sort(self.low[somewhere]), np.sort(self.high[somewhere])
        ends = np.unique(np.concatenate([low, high, self.span]).clip(*self.span))
        middles = (ends[:-1] + ends[1:]) / 2
        wide = np.diff(ends) > NARROW * np.maximum(1, np.abs(middles))
        settings = np.concatenate([self.span[:1], middles[wide], self.span[1:]])
        count = np.searchsorted(low, settings, "left") - np.searchsorted(high, settings, "right")
        return settings, count / len(self.low)

    def best(self) -> float:
        """The largest clean accuracy that any setting has."""
        return float(self.steps()[1].max())

    def reaching(self, target: float) -> np.ndarray:
        """The settings of `steps` that have the wanted clean accuracy."""
        check_share(target, "clean accuracy")
        settings, accuracy = self.steps()
        return settings[accuracy >= target]

    def largest(self, target: float) -> float:
        """The most robust setting that still has the wanted clean accuracy: the largest one that reaches it."""
        enough = self.reaching(target)
        if not len(enough):
            settings, accuracy = self.steps()
            best = int(accuracy.argmax())
            offer = math.floor(1000 * accuracy[best]) / 1000  # down: what is offered has to work when it is asked for
            raise ValueError(
                f"expected a clean accuracy this pair can reach, got {target:.4g}: the best on {len(self.low):,} "
                f"images is {offer:.3f}, at {self.dial} {settings[best]:.3f}; ask for at most that"
            )
        return float(enough[-1])


def check_share(target: float, name: str) -> None:
    if not 0 < target <= 1:
        raise ValueError(f"expected a {name} in (0, 1], such as 0.9, got {target}")


def correct_interval(g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the open interval of alphas at which (1 - alpha) g + alpha h is largest at its label.

    Takes probabilities [N, C]. An image that is right at no alpha gets low >= high, or NaN if it has a NaN; one that is
    right up to an end gets an interval that reaches beyond it.
    """
    lead_g = g.gather(1, labels[:, None]) - g
    lead_h = h.gather(1, labels[:, None]) - h
    ahead_g, ahead_h = lead_g > 0, lead_h > 0
    crossing = lead_g / (lead_g - lead_h)
    high = torch.where(ahead_g & ~ahead_h, crossing, torch.inf)
    low = torch.where(~ahead_g & ahead_h, crossing, -torch.inf)
    low = torch.where(~ahead_g & ~ahead_h, torch.inf, low)
    own = torch.zeros_like(g, dtype=torch.bool).scatter(1, labels[:, None], True)
    return low.masked_fill(own, -torch.inf).amax(1), high.masked_fill(own, torch.inf).amin(1)
