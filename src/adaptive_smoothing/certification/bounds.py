"""Upper confidence bounds on means. Each bound is below the true mean with at most a given failure probability.

The mean is that of errors in [0, 1]: 1 - p for the class that h predicts, or p for any other class. Large radii need
errors near 1e-5. float64 resolves those better than probabilities near 1 - 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, logsumexp

from adaptive_smoothing.certification import rounding
from adaptive_smoothing.settings.checks import check_number, check_whole

# The values that an observed error is rounded up to, which can only enlarge a bound. Hard votes are 0 or 1. Soft votes
# are 0 or on a geometric grid with steps below one percent.
VOTES = np.array([0.0, 1.0])
PROBABILITIES = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 2000)])
# The values of a betting bound, in steps of a fifth of a percent.
MEANS = np.geomspace(1e-7, 1.0, 2**13 + 1)


def check_failure_probability(failure_probability: float) -> None:
    check_number(failure_probability=failure_probability)
    if not 0 < failure_probability < 1:
        raise ValueError(f"expected a failure probability in (0, 1), got {failure_probability}: 0.001 is usual")


def check_samples(samples: int) -> None:
    check_whole(samples=samples)
    if samples < 1:
        raise ValueError(f"expected at least 1 sample, got {samples}: 10,000 are usual")


def clopper_pearson(successes: np.ndarray, trials: int, failure_probability: float) -> np.ndarray:
    """Return the exact upper bound on a probability. It holds for counts (hard votes), not for means of soft votes."""
    check_failure_probability(failure_probability)
    check_samples(trials)
    found = np.asarray(successes, dtype=np.float64)
    bound = betainccinv(np.minimum(found + 1, trials), np.maximum(trials - found, 1e-300), failure_probability)
    # betainccinv is least accurate for 0 successes, where the bound is known in closed form.
    none = -np.expm1(np.log(failure_probability) / trials)
    return _rounded_up(np.where(found == 0, none, np.where(found >= trials, 1.0, bound)))


@dataclass(frozen=True)
class Betting:
    """Bets against "the mean error is at least m" (Waudby-Smith and Ramdas 2024). They hold for soft and hard votes.

    An observed error q multiplies the capital of a bettor by 1 + stake (m - q) / (1 - m). The bet is fair if the mean
    is m, and loses if it is more. Several bettors with different stakes share an initial capital of 1. If the statement
    is true, their capital ever reaches 1 / failure_probability with at most that probability (Ville's inequality),
    however often one checks. So the bets also decide when to stop sampling. The capital depends on how often each error
    was observed, not on the order.

    Args:
        stakes: share of the capital that each bettor may lose on one sample; for hard votes 1 - mean / m is optimal.
    """

    stakes: tuple[float, ...] = (1.0, 0.97, 0.9, 0.77, 0.57, 0.36, 0.2, 0.1, 0.04)

    def log_capital(self, counts: np.ndarray, mean: float | np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the logarithm of the capital of all bettors.

        Args:
            counts: how often each value was observed, [N, values].
            mean: m of the statement, one for all rows or one per row.
            values: the values that are counted, `VOTES` or `PROBABILITIES`.
        """
        mean = np.asarray(mean, dtype=np.float64)
        if not mean.ndim:
            logs = counts @ self._log_factors(mean, values)
        else:
            distinct, which, sizes = np.unique(mean, return_inverse=True, return_counts=True)
            logs = np.empty((len(counts), len(self.stakes)))
            for m, rows in zip(distinct, np.split(np.argsort(which), np.cumsum(sizes)[:-1]), strict=True):
                logs[rows] = counts[rows] @ self._log_factors(m, values)
        return logsumexp(logs, axis=-1) - np.log(len(self.stakes))

    def _log_factors(self, mean: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return [values, stakes] log factors, finite for a bettor who loses everything: 0 counts must not give NaN."""
        stakes = np.asarray(self.stakes)
        factors = 1 + stakes * ((mean - values) / np.maximum(1 - mean, 1e-300))[:, None]
        return np.log(np.maximum(factors, 1e-300))

    def log_capital_above(self, counts: np.ndarray, mean: float, values: np.ndarray) -> np.ndarray:
        """Return the log capital of bets against "the mean error is at most m": the same bets on 1 - q and 1 - m."""
        return self.log_capital(counts, 1 - mean, 1 - values)

    def upper(self, counts: np.ndarray, failure_probability: float, values: np.ndarray) -> np.ndarray:
        """Return, for each row of counts, the smallest m that is refuted together with all larger ones."""
        check_failure_probability(failure_probability)
        counts = np.asarray(counts, dtype=np.float64)
        # A bisection over MEANS: many rows share a mean at first, and its factors are computed once.
        low, high = np.zeros(len(counts), dtype=int), np.full(len(counts), len(MEANS) - 1)
        while (high - low > 1).any():
            middle = (low + high) // 2
            refuted = self.log_capital(counts, MEANS[middle], values) >= -np.log(failure_probability)
            low, high = np.where(refuted, low, middle), np.where(refuted, middle, high)
        return _rounded_up(MEANS[high])


def _rounded_up(bound: np.ndarray) -> np.ndarray:
    return np.minimum(bound * (1 + rounding.BOUND), 1.0)
