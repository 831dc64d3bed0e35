"""The dial by its target: the alpha that gives a wanted clean accuracy.

The mixture of an image is linear in alpha, so it is classified right on one interval of alphas. The ends of those
intervals give the clean accuracy at every alpha exactly, from one pass over the validation images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.verdict import verdict_logits
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import check_data
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.results import read_rows, write_rows


@dataclass(frozen=True)
class CleanAccuracy:
    """Clean accuracy as a function of alpha: each image is right for alphas strictly between `low` and `high`."""

    low: np.ndarray
    high: np.ndarray

    def __call__(self, alpha: float) -> float:
        return float(((self.low < alpha) & (alpha < self.high)).mean())

    def save(self, path: Path) -> None:
        """From this file the alpha for any clean accuracy can be read without the models."""
        write_rows(path, {"low": self.low, "high": self.high})

    @classmethod
    def load(cls, path: Path) -> CleanAccuracy:
        return cls(**read_rows(path))

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Alphas, one inside each stretch of constant accuracy, and the accuracy there."""
        somewhere = self.low < self.high
        low, high = np.sort(self.low[somewhere]), np.sort(self.high[somewhere])
        ends = np.unique(np.concatenate([low, high, [0.0, 1.0]]).clip(0, 1))
        alphas = np.concatenate([[0.0], (ends[:-1] + ends[1:]) / 2, [1.0]])
        count = np.searchsorted(low, alphas, "left") - np.searchsorted(high, alphas, "right")
        return alphas, count / len(self.low)

    def largest_alpha(self, target: float) -> float:
        """The most robust setting that still has the wanted clean accuracy: the largest alpha that reaches it."""
        if not 0 < target <= 1:
            raise ValueError(f"expected a clean accuracy in (0, 1], such as 0.9, got {target}")
        alphas, accuracy = self.steps()
        enough = np.flatnonzero(accuracy >= target)
        if not len(enough):
            best = int(accuracy.argmax())
            offer = math.floor(1000 * accuracy[best]) / 1000  # down: what is offered has to work when it is asked for
            raise ValueError(
                f"expected a clean accuracy this pair can reach, got {target:.4g}: the best on {len(self.low):,} "
                f"images is {offer:.3f}, at alpha {alphas[best]:.3f}; ask for at most that"
            )
        return float(alphas[enough[-1]])


def right_interval(g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the open interval of alphas at which (1 - alpha) g + alpha h is largest at its label.

    Takes probabilities [N, C]. An image that is right at no alpha gets low >= high; one that is right up to an end
    gets an interval that reaches beyond it.
    """
    lead_g = g.gather(1, labels[:, None]) - g
    lead_h = h.gather(1, labels[:, None]) - h
    crossing = lead_g / (lead_g - lead_h)
    high = torch.where((lead_g > 0) & (lead_h <= 0), crossing, torch.inf)
    low = torch.where((lead_g <= 0) & (lead_h > 0), crossing, -torch.inf)
    low = torch.where((lead_g <= 0) & (lead_h <= 0), torch.inf, low)
    own = torch.zeros_like(g, dtype=torch.bool).scatter(1, labels[:, None], True)
    return low.masked_fill(own, -torch.inf).amax(1), high.masked_fill(own, torch.inf).amin(1)


def clean_accuracy(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    *,
    standard_scale: float | Tensor = 1.0,
    robust_scale: float | Tensor = 1.0,
    batch_size: int = 500,
    progress: Callable[[int], None] | None = None,
) -> CleanAccuracy:
    """Clean accuracy of the mixture of two classifiers at every alpha, measured on `data`.

    `progress` is called with the number of images of each finished batch.
    """
    check_data(data)
    device = next(robust.parameters()).device
    bases = ((standard, standard_scale), (robust, robust_scale))
    ends = []
    for batch in batches(data, batch_size, device=device):
        g, h = ((verdict_logits(model, batch.images).double() * scale).softmax(1) for model, scale in bases)
        ends.append(torch.stack(right_interval(g, h, batch.labels)).cpu())
        if progress is not None:
            progress(len(batch.labels))
    low, high = torch.cat(ends, dim=1).numpy()
    return CleanAccuracy(low, high)


def tune(mixed: MixedClassifier, data: ImageData, *, clean_accuracy: float) -> MixedClassifier:
    """The view of `mixed` with the largest fixed alpha that has the wanted clean accuracy on `data`.

    Give it validation images: what is tuned on the test set cannot be reported on it.
    """
    alpha = _curve(mixed, data).largest_alpha(clean_accuracy)
    return mixed.with_alpha_range(0, 1).with_alpha(alpha)


def _curve(mixed: MixedClassifier, data: ImageData) -> CleanAccuracy:
    return clean_accuracy(
        mixed.standard, mixed.robust, data, standard_scale=mixed.standard_scale, robust_scale=mixed.robust_scale
    )
