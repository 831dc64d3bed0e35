"""Measure how often upper confidence bounds fail, over simulated runs with a known mean.

    python benchmarks/coverage.py --runs 10000 --out benchmarks/results/coverage.json

The simulated errors resemble those of smoothing: rare votes for other classes, and a confident, an unconfident and an
undecided softmax. For two failure probabilities, the table has the share of runs in which the bound is below the true
mean, and how far the bound is above the average. The share may be at most the failure probability. "anytime" checks
after every 50 samples and counts a run as failed if the bet against the true mean was ever won. The Chernoff and
Bernstein bounds are here for comparison only: certification uses Clopper-Pearson for votes and betting for
probabilities.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import rel_entr

from adaptive_smoothing.certification.bounds import (
    PROBABILITIES,
    VOTES,
    Betting,
    check_failure_probability,
    check_samples,
    clopper_pearson,
)
from adaptive_smoothing.results import interval, write_json

# Parameters of the beta distributions of errors; for votes the probability of an error. The names are stored.
KINDS: dict[str, float | tuple[float, float]] = {
    "votes, 2 % against": 0.02,
    "votes, 0.1 % against": 0.001,
    "sure softmax": (0.05, 5.0),
    "unsure softmax": (2.0, 6.0),
    "undecided softmax": (0.1, 0.3),
}
CHANCES = (0.05, 0.001)
CHECK_EVERY = 50
BISECTIONS = 40


def chernoff(mean: np.ndarray, samples: int, failure_probability: float) -> np.ndarray:
    """Return the smallest m with exp(-samples KL(average, m)) <= failure_probability (Hoeffding 1963, thm. 1)."""
    check_failure_probability(failure_probability)
    check_samples(samples)
    low = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    average, high = low, np.ones_like(low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        divergence = rel_entr(average, middle) + rel_entr(1 - average, 1 - middle)
        refuted = samples * divergence >= -np.log(failure_probability)
        low, high = np.where(refuted, low, middle), np.where(refuted, middle, high)
    return high


def empirical_bernstein(mean: np.ndarray, variance: np.ndarray, samples: int, failure_probability: float) -> np.ndarray:
    """Return the bound from the average and the sample variance (Maurer and Pontil 2009, thm. 4)."""
    check_failure_probability(failure_probability)
    check_samples(samples)
    if samples < 2:
        return np.ones_like(np.asarray(mean, dtype=np.float64))
    log = np.log(2 / failure_probability)
    width = np.sqrt(2 * np.asarray(variance) * log / samples) + 7 * log / (3 * (samples - 1))
    return np.minimum(np.asarray(mean) + width, 1.0)


def errors(kind: str, runs: int, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return simulated errors and their true mean."""
    shape = KINDS[kind]
    if isinstance(shape, float):
        return (rng.random((runs, samples)) < shape).astype(float), shape
    return rng.beta(*shape, size=(runs, samples)), shape[0] / sum(shape)


def histograms(seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return how often each value was observed in each run."""
    places = np.searchsorted(values, np.minimum(seen, 1.0))
    return np.stack([np.bincount(row, minlength=len(values)) for row in places])


def uppers(kind: str, seen: np.ndarray, chance: float) -> dict[str, np.ndarray]:
    """Return the upper bounds of each run, by name."""
    votes, samples = isinstance(KINDS[kind], float), seen.shape[1]
    values = VOTES if votes else PROBABILITIES
    mean, variance = seen.mean(1), seen.var(1, ddof=1)
    found = {"clopper-pearson": clopper_pearson(seen.sum(1), samples, chance)} if votes else {}
    return found | {
        "betting": Betting().upper(histograms(seen, values), chance, values),
        "bernstein": empirical_bernstein(mean, variance, samples, chance),
        "chernoff": chernoff(mean, samples, chance),
    }


def ever_won(kind: str, seen: np.ndarray, truth: float, chance: float) -> np.ndarray:
    """Return whether the bet against the true mean was ever won."""
    values = VOTES if isinstance(KINDS[kind], float) else PROBABILITIES
    won = np.zeros(len(seen), dtype=bool)
    for last in range(CHECK_EVERY, seen.shape[1] + 1, CHECK_EVERY):
        won |= Betting().log_capital(histograms(seen[:, :last], values), truth, values) >= -np.log(chance)
    return won


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for number, kind in enumerate(KINDS):
        seen, truth = errors(kind, args.runs, args.samples, np.random.default_rng([args.seed, number]))
        for chance in CHANCES:
            found = uppers(kind, seen, chance)
            failed = {name: bound < truth for name, bound in found.items()}
            failed["betting, anytime"] = ever_won(kind, seen, truth, chance)
            for name, which in failed.items():
                width = float((found[name] - seen.mean(1)).mean()) if name in found else None
                high = interval(int(which.sum()), args.runs)[1]
                row = {"doubts": kind, "bound": name, "failure probability": chance, "failed": float(which.mean())}
                rows.append({**row, "failed, at most": high, "above the average": width})
                print(rows[-1], flush=True)
    if args.out:
        write_json(args.out, {"runs": args.runs, "samples": args.samples, "seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
