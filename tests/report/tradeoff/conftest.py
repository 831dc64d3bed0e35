"""Synthetic trade-offs: every image has a margin under g and one under h."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from adaptive_smoothing.evaluation.tradeoff import ALPHAS, MIX_ALPHAS, Tradeoff
from adaptive_smoothing.report.tradeoff.report import Choice, Report

SETTINGS = {"data": "cifar10/test", "fingerprint": "f" * 64, "norm": "Linf", "eps": 8 / 255, "steps": 20}


def synthetic(
    images: int, seed: int = 0, alphas: Sequence[float] = ALPHAS, mix_alphas: Sequence[float] = MIX_ALPHAS
) -> Tradeoff:
    """Return a trade-off in which the mixture is correct where its mixed margin is positive."""
    chance = np.random.default_rng(seed)
    margin = {
        "clean_g": np.where(chance.random(images) < 0.94, 1, -1) * chance.beta(20, 0.5, images),
        "clean_h": np.where(chance.random(images) < 0.8, 1, -0.6) * chance.beta(2, 0.7, images),
    }
    margin["rob_g"] = margin["clean_g"] * 0.9
    margin["std_h"] = margin["clean_h"] * 0.95
    margin["std_g"] = -np.abs(margin["clean_g"])
    margin["rob_h"] = margin["clean_h"] - 0.7 * chance.random(images)
    rows: dict[str, np.ndarray] = {"index": np.arange(images), "label": chance.integers(0, 10, images)}
    for view in ("clean", "std", "rob"):
        for model in "gh":
            rows[f"{view}_{model}"] = margin[f"{view}_{model}"] > 0
            rows[f"{view}_{model}_gap"] = np.abs(margin[f"{view}_{model}"]).clip(0, 1).astype(np.float32)
        rows[view] = np.stack([(1 - a) * margin[f"{view}_g"] + a * margin[f"{view}_h"] > 0 for a in alphas])
    rows["mix"] = np.stack([(1 - a) * margin["std_g"] + a * margin["rob_h"] > 0 for a in mix_alphas])
    return Tradeoff(np.asarray(alphas, float), np.asarray(mix_alphas, float), rows, dict(SETTINGS))


@pytest.fixture
def make() -> Callable[..., Tradeoff]:
    return synthetic


@pytest.fixture
def run() -> Tradeoff:
    return synthetic(2000)


def full_report() -> Report:
    """Return a report with all parts: a run, a chosen alpha, facts that HTML has to escape."""
    return Report(synthetic(2000), Choice(0.9, 0.753, 0.9125, 800), {"device": "<a> & b"})


@pytest.fixture
def report() -> Report:
    return full_report()
