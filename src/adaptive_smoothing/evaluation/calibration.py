"""How well the confidence of a classifier agrees with its accuracy (Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The usual number of bins.
BINS = 15


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predictions in bins of equal width, by their confidence: the probability of the predicted class.

    Bin k of n has the confidences in (k / n, (k + 1) / n].

    Args:
        images: number of predictions in each bin.
        confidence: mean confidence in each bin; NaN without predictions.
        accuracy: share of correct predictions in each bin; NaN without predictions.
    """

    images: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @classmethod
    def measure(cls, confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> Calibration:
        """Return the calibration of predictions with these confidences, of which some are correct."""
        confidence = confidence.astype(np.float64)
        number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        images = np.bincount(number, minlength=bins)
        sums = (np.bincount(number, weights=values, minlength=bins) for values in (confidence, correct))
        mean, accuracy = (np.divide(each, images, out=np.full(bins, np.nan), where=images > 0) for each in sums)
        return cls(images, mean, accuracy)

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |accuracy - confidence| over bins, weighted by their images."""
        return self._mean(np.abs(self.accuracy - self.confidence))

    def summary(self) -> dict[str, float]:
        """Return the figures for `result.json`."""
        return {
            "error": self.error,
            "confidence": self._mean(self.confidence),
            "accuracy": self._mean(self.accuracy),
        }

    def _mean(self, values: np.ndarray) -> float:
        """Return the mean over all predictions of a value per bin."""
        return float(np.nansum(values * self.images) / self.images.sum())
