"""How often each bound of certification/bounds.py fails, over simulated runs with a known mean.

    python benchmarks/coverage.py --runs 10000 --out benchmarks/results/coverage.json

For doubts as bases of smoothing have them (rare votes against, a sure, an unsure and an undecided softmax), at two
failure probabilities: the share of runs in which the bound is below the true mean, which may be at most the failure
probability, and how far above the average the bound is. `anytime` looks after every 50 samples and counts a run as
failed if the bet against the truth was ever won.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.certification.bounds import (
    PROBABILITIES,
    VOTES,
    Betting,
    chernoff,
    clopper_pearson,
    empirical_bernstein,
)
from adaptive_smoothing.results import interval, write_json

# Parameters of beta distributions of doubts; votes have a share.
KINDS: dict[str, float | tuple[float, float]] = {
    "votes, 2 % against": 0.02,
    "votes, 0.1 % against": 0.001,
    "sure softmax": (0.05, 5.0),
    "unsure softmax": (2.0, 6.0),
    "undecided softmax": (0.1, 0.3),
}
CHANCES = (0.05, 0.001)
LOOK_EVERY = 50


def doubts(kind: str, runs: int, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Simulated doubts, and their true mean."""
    shape = KINDS[kind]
    if isinstance(shape, float):
        return (rng.random((runs, samples)) < shape).astype(float), shape
    return rng.beta(*shape, size=(runs, samples)), shape[0] / sum(shape)


def counted(seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    places = np.searchsorted(values, np.minimum(seen, 1.0))
    return np.stack([np.bincount(row, minlength=len(values)) for row in places])


def uppers(kind: str, seen: np.ndarray, chance: float) -> dict[str, np.ndarray]:
    votes, samples = isinstance(KINDS[kind], float), seen.shape[1]
    values = VOTES if votes else PROBABILITIES
    mean, variance = seen.mean(1), seen.var(1, ddof=1)
    found = {"clopper-pearson": clopper_pearson(seen.sum(1), samples, chance)} if votes else {}
    return found | {
        "betting": Betting().upper(counted(seen, values), chance, values),
        "bernstein": empirical_bernstein(mean, variance, samples, chance),
        "chernoff": chernoff(mean, samples, chance),
    }


def ever_won(kind: str, seen: np.ndarray, truth: float, chance: float) -> np.ndarray:
    """Whether the bet against the truth was won at some look."""
    values = VOTES if isinstance(KINDS[kind], float) else PROBABILITIES
    won = np.zeros(len(seen), dtype=bool)
    for last in range(LOOK_EVERY, seen.shape[1] + 1, LOOK_EVERY):
        won |= Betting().log_capital(counted(seen[:, :last], values), truth, values) >= -np.log(chance)
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
        seen, truth = doubts(kind, args.runs, args.samples, np.random.default_rng([args.seed, number]))
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
