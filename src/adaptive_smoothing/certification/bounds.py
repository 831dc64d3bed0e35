"""Upper bounds on means, each of which is wrong with at most a given probability.

What is bounded is doubt: q = 1 - p of the class that h says, or the p of any other, a number in [0, 1]. Doubts of 1e-5
are what large radii are made of, and float64 keeps all their digits, where those of 1 - 1e-5 would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, logsumexp, rel_entr

# More than the special functions are off by.
ROUNDING = 1e-9
HALVINGS = 40
# Bounds of bets, rounded up to steps of a fifth of a percent.
MEANS = np.geomspace(1e-7, 1.0, 2**13 + 1)


def check_failure_probability(failure_probability: float) -> None:
    if not 0 < failure_probability < 1:
        raise ValueError(
            f"expected a failure probability in (0, 1), got {failure_probability}: 0.001 is usual; 0 cannot be had by "
            "sampling"
        )


def check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"expected at least 1 sample, got {samples}: 10,000 are usual")


def clopper_pearson(successes: np.ndarray, trials: int, failure_probability: float) -> np.ndarray:
    """Of a probability, from how often it came true. For counts, and for nothing else: it is not valid for means."""
    check_failure_probability(failure_probability)
    check_samples(trials)
    found = np.asarray(successes, dtype=np.float64)
    bound = betainccinv(np.minimum(found + 1, trials), np.maximum(trials - found, 1e-300), failure_probability)
    # It has no digits to spare where nothing came true, and that is known.
    none = -np.expm1(np.log(failure_probability) / trials)
    return _up(np.where(found == 0, none, np.where(found >= trials, 1.0, bound)))


def chernoff(mean: np.ndarray, samples: int, failure_probability: float) -> np.ndarray:
    """Of the mean of numbers in [0, 1], from their average alone: the smallest m that would make it too unlikely, by
    exp(-samples KL(average, m)) (Hoeffding 1963, thm. 1)."""
    check_failure_probability(failure_probability)
    check_samples(samples)
    low = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    average, high = low, np.ones_like(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        divergence = rel_entr(average, middle) + rel_entr(1 - average, 1 - middle)
        refuted = samples * divergence >= -np.log(failure_probability)
        low, high = np.where(refuted, low, middle), np.where(refuted, middle, high)
    return _up(high)


def empirical_bernstein(mean: np.ndarray, variance: np.ndarray, samples: int, failure_probability: float) -> np.ndarray:
    """Of the mean of numbers in [0, 1], from their average and their sample variance (Maurer and Pontil 2009, thm.
    4)."""
    check_failure_probability(failure_probability)
    check_samples(samples)
    if samples < 2:
        return np.ones_like(np.asarray(mean, dtype=np.float64))
    log = np.log(2 / failure_probability)
    return _up(np.asarray(mean) + np.sqrt(2 * np.asarray(variance) * log / samples) + 7 * log / (3 * (samples - 1)))


# Doubts on which samples of probabilities are counted: 0, then geometric steps of less than a percent. A doubt is
# rounded up to the next of them, which can only make a bound larger. Votes are 0 or 1.
PROBABILITIES = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 2000)])
VOTES = np.array([0.0, 1.0])


@dataclass(frozen=True)
class Betting:
    """Bets against "the mean doubt is at least m" (Waudby-Smith and Ramdas 2024).

    Each sample q multiplies the capital of a bettor by 1 + stake (m - q) / (1 - m), which is fair if the mean is m and
    loses if it is more. Several bettors share a capital of 1 at the start. If the statement is true the capital ever
    reaches 1 / failure_probability with at most that probability (Ville), however often one looks: so this decides also
    when to stop. The capital depends on how often each doubt was seen, not on the order.
    """

    # What a bettor may lose of his capital on one sample, all of it included: the best is 1 - (true mean) / m for
    # votes.
    stakes: tuple[float, ...] = (1.0, 0.97, 0.9, 0.77, 0.57, 0.36, 0.2, 0.1, 0.04)

    def log_capital(self, counts: np.ndarray, mean: float | np.ndarray, values: np.ndarray) -> np.ndarray:
        """Of all bettors together, for each row of how often each of the values was seen [N, values]; `mean` is one m,
        or one per row."""
        mean = np.asarray(mean, dtype=np.float64)
        if not mean.ndim:
            return self._shared(counts @ self._log_factors(mean, values))
        distinct, which, sizes = np.unique(mean, return_inverse=True, return_counts=True)
        logs = np.empty((len(counts), len(self.stakes)))
        for m, rows in zip(distinct, np.split(np.argsort(which), np.cumsum(sizes)[:-1]), strict=True):
            logs[rows] = counts[rows] @ self._log_factors(m, values)
        return self._shared(logs)

    def _shared(self, logs: np.ndarray) -> np.ndarray:
        return logsumexp(logs, axis=-1) - np.log(len(self.stakes))

    def _log_factors(self, mean: np.ndarray, values: np.ndarray) -> np.ndarray:
        """[values, stakes]. A bettor who lost everything is out, and 0 samples of that doubt must not make it a NaN."""
        stakes = np.asarray(self.stakes)
        factors = 1 + stakes * ((mean - values) / np.maximum(1 - mean, 1e-300))[:, None]
        return np.log(np.maximum(factors, 1e-300))

    def log_capital_above(self, counts: np.ndarray, mean: float, values: np.ndarray) -> np.ndarray:
        """The same of bets against "the mean doubt is at most m": when to give up. A bet on q is one on m - q for 1 -
        q."""
        return self.log_capital(counts, 1 - mean, 1 - values)

    def upper(self, counts: np.ndarray, failure_probability: float, values: np.ndarray) -> np.ndarray:
        """The smallest m that is refuted together with all above it, for each row of counts."""
        check_failure_probability(failure_probability)
        counts = np.asarray(counts, dtype=np.float64)
        # All rows are asked about the same means at first: their factors are computed once.
        low, high = np.zeros(len(counts), dtype=int), np.full(len(counts), len(MEANS) - 1)
        while (high - low > 1).any():
            middle = (low + high) // 2
            refuted = self.log_capital(counts, MEANS[middle], values) >= -np.log(failure_probability)
            low, high = np.where(refuted, low, middle), np.where(refuted, middle, high)
        return _up(MEANS[high])


def _up(bound: np.ndarray) -> np.ndarray:
    """Rounded up, and never above 1."""
    return np.minimum(bound * (1 + ROUNDING), 1.0)
