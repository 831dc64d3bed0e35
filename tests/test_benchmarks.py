"""The comparison of candidates, on models whose attacks are exact."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.evaluation.accuracy import evaluate


@pytest.fixture(scope="module")
def candidates():
    path = Path(__file__).parents[1] / "benchmarks" / "candidates.py"
    spec = importlib.util.spec_from_file_location("candidates", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_candidate_is_measured_at_the_wanted_accuracies(candidates, linear):
    robust = type(linear)(seed=1).eval()
    pixels = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, linear(pixels / 255).argmax(1))
    figures, stands = candidates.measure(linear, robust, data, [0.5, 0.9], steps=2, size=25)
    assert figures["clean"] == evaluate(robust, data).clean
    low, high = figures["at"]
    assert low["alpha"] > high["alpha"] and stands.shape == (2, 60)
    assert [low["stands all"], high["stands all"]] == stands.mean(1).tolist()


def test_the_difference_is_over_the_same_images(candidates):
    mine, theirs = np.array([1, 1, 1, 0] * 100, bool), np.array([1, 0, 1, 0] * 100, bool)
    ahead, half = candidates.difference(mine, theirs)
    # A quarter of the images differ: variance 1/4 * 3/4 over 400 images.
    assert ahead == 0.25 and half == pytest.approx(1.96 * (3 / 16 / 400) ** 0.5)
    assert candidates.difference(mine, mine) == (0, 0)
