"""The comparisons of candidates and of objectives, on models whose attacks are exact."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import Linf


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def candidates():
    return benchmark("candidates")


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


def test_each_objective_is_alone_and_beside_the_others(linear):
    objectives = benchmark("objectives")
    robust = type(linear)(seed=1).eval()
    model = MixedClassifier(linear, robust, 0.6)
    pixels = torch.randint(100, 156, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, model(pixels / 255).argmax(1))
    stages = objectives.contestants(Linf(0.01))
    assert {"APGD-CE", "FAB-T", "APGD-T, turning g", "APGD-T, turning g, 5 restarts"} < set(stages)
    short = {name: replace(stage, attack=replace(stage.attack, steps=3)) for name, stage in stages.items()}
    rows = objectives.measure(model, data, short, "cpu")
    together = rows.pop("all of them")["stands"]
    assert all(round(20 * (row["stands"] - together)) == row["fell to another"] for row in rows.values())
    assert max(row["fell to another"] for row in rows.values()) > 0
    assert together == min(row["stands"] for row in rows.values()) < 1
