"""Confidence gaps, the paper's tab:confidence: how far the first class is ahead of the second."""

from __future__ import annotations

import numpy as np
from torch import Tensor

# Accuracy, and the mean and median gap of correct and of incorrect predictions; None if there are no such predictions.
GapStatistics = dict[str, float | None]


def confidence_gap(probabilities: Tensor) -> Tensor:
    """Return the largest minus the second-largest probability of each row."""
    first, second = probabilities.topk(2).values.unbind(1)
    return first - second


def gap_statistics(correct: np.ndarray, gap: np.ndarray) -> GapStatistics:
    """Return the accuracy and the mean and median gap; means are taken in the precision of `gap`."""
    found: GapStatistics = {"accuracy": float(correct.mean())}
    for name, which in (("right", correct), ("wrong", ~correct)):
        values = gap[which]
        found[f"{name}_mean"] = float(np.mean(values)) if len(values) else None
        found[f"{name}_median"] = float(np.median(values)) if len(values) else None
    return found
