"""Attacks on training images of a mixing network."""

import pytest
import torch

from adaptive_smoothing.attacks.objectives import cross_entropy
from adaptive_smoothing.attacks.pgd import PGD, STEP_FACTOR
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.mixing.attacks import BatchRunner, TrainingPGD, initial_state

SETTINGS = ["A", "B", "C", "flip-standard"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_attacks_stay_in_balls_of_many_radii(toy, tmp_path, setting):
    run = toy.trainer(tmp_path, toy.recipe(setting))
    batch = toy.first_batch(run)
    clean, attacked = run.examples(batch).images.chunk(2)
    assert torch.equal(clean, batch.images)
    distance = (attacked - clean).flatten(1).abs().amax(1)
    eps = toy.EPS
    assert (distance <= 1.1 * eps + 1e-6).all() and distance.max() > 0.9 * eps and distance.min() < 0.7 * eps
    assert attacked.min() >= 0 and attacked.max() <= 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_attacks_lower_the_accuracy_of_the_mixture(toy, tmp_path, setting):
    """With this alpha the mixture starts as g, which is correct on all clean images."""
    settings = {"through_robust": 0.0, "steps": 10, "vary_steps": False}
    run = toy.trainer(tmp_path, toy.recipe(setting, attack=settings, operating_point={"scale": 0.01, "shift": -4.0}))
    examples = run.examples(toy.first_batch(run))
    mixed = run.mixed.combine(examples.base_outputs, examples.images)
    clean, attacked = (mixed.logits.argmax(1) == examples.labels).float().chunk(2)
    assert clean.mean() == 1 and attacked.mean() < 0.9


def test_flip_standard_flips_g(toy, tmp_path):
    """Where the mixture is h, plain PGD has no reason to change g; `flip-standard` has."""
    attack = {"through_robust": 0.0, "steps": 10, "vary_steps": False, "eps_factor_min": 1.0}
    changes = {"attack": attack, "operating_point": {"scale": 0.01, "shift": 20.0}}
    correct = {}
    for setting in ("B", "flip-standard"):
        run = toy.trainer(tmp_path / setting, toy.recipe(setting, **changes))
        examples = run.examples(toy.first_batch(run))
        correct[setting] = (examples.base_outputs.g.argmax(1) == examples.labels)[64:].float().mean().item()
    assert correct["flip-standard"] < 0.1 and correct["B"] > 0.5


def test_the_steps_are_those_of_pgd(toy, tmp_path):
    """With one state per batch size, as it is recorded on a GPU."""
    run = toy.trainer(tmp_path, toy.recipe("A"))
    batch, threat = toy.first_batch(run), Linf(torch.linspace(0.0, toy.EPS, 64))
    runner = BatchRunner(TrainingPGD(threat, 5, cross_entropy), run.mixed.gray_box())
    start = initial_state(batch, threat, step_size=STEP_FACTOR / 5) | {"iterate": batch.images}
    expected = PGD(threat, steps=5).last_iterate(run.mixed.gray_box(), batch.images, batch.labels, batch.noise)
    for _ in range(2):  # the second batch reuses the state of the first
        torch.testing.assert_close(runner(start, 5)["iterate"], expected)
