"""Memory, frozen weights, views and transfer attacks."""

import pytest
import torch
from torch import nn
from toys import ATTACKS, CPU, Planes, make_images, make_input, run

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.models.contract import frozen
from adaptive_smoothing.threat import Linf


class LittleMemory(nn.Module):
    """Has memory for a few images only."""

    def __init__(self, model, limit):
        super().__init__()
        self.model, self.limit = model, limit
        self.training = False

    def forward(self, images):
        if len(images) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.model(images)


@pytest.mark.parametrize("name", ["apgd", "square"])
def test_if_memory_runs_out_the_batch_is_halved_and_the_outcome_is_the_same(network, name):
    inputs = make_input(network, make_images(8, (3, 8, 8), 0, 1), Linf(0.012))
    engine, attack = Engine(LittleMemory(network, 5), CPU, 64, precise=True), ATTACKS[name](inputs.threat)
    outcome, expected = run_attack(engine, "test", attack, inputs), run(network, attack, inputs, 64)
    assert torch.equal(outcome.fooled, expected.fooled) and torch.equal(outcome.queries, expected.queries)
    assert torch.allclose(outcome.margin, expected.margin, atol=1e-4)
    assert engine.size == 4


def test_no_memory_for_one_image_is_an_error(network):
    inputs = make_input(network, make_images(3, (3, 8, 8), 0, 1), Linf(0.012))
    with pytest.raises(torch.OutOfMemoryError):
        run(LittleMemory(network, 0), ATTACKS["apgd"](inputs.threat), inputs)


def test_large_images_come_in_smaller_batches():
    model, seen = Planes(2, (3, 64, 64)), []
    inputs = make_input(model, make_images(20, (3, 64, 64)), Linf(1e-5))
    model.register_forward_hook(lambda module, images, output: seen.append(len(output)))
    engine = Engine(model, CPU)
    run_attack(engine, "test", APGD(inputs.threat, steps=1), inputs)
    assert engine.size == max(seen) == 8  # a quarter of 32


def test_weights_are_frozen_during_an_attack_and_restored_after_it_and_after_an_error():
    model, inside, fails = Planes(), [], []
    model.bias.requires_grad_(False)

    def record(module, images):
        inside.append(module.weight.requires_grad)
        if fails:
            raise KeyError

    inputs = make_input(model, make_images(4), Linf(0.02))
    model.register_forward_pre_hook(record)
    run(model, APGD(inputs.threat, steps=3), inputs)
    assert inside and not any(inside)
    assert model.weight.requires_grad and not model.bias.requires_grad and model.weight.grad is None
    fails.append(True)
    with pytest.raises(KeyError):
        run(model, APGD(inputs.threat, steps=3), inputs)
    assert model.weight.requires_grad and not model.bias.requires_grad


def test_frozen_restores_weights_that_two_models_share():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.bias.requires_grad_(False)
    both = nn.Sequential(one, two)
    with frozen(both, one):
        assert not any(weight.requires_grad for weight in both.parameters())
    assert [weight.requires_grad for weight in both.parameters()] == [True, True, True, False]


def test_attacks_work_inside_no_grad(network):
    inputs = make_input(network, make_images(6, (3, 8, 8), 0, 1), Linf(0.012))
    expected = run(network, APGD(inputs.threat, steps=4), inputs)
    with torch.no_grad():
        assert torch.equal(run(network, APGD(inputs.threat, steps=4), inputs).worst, expected.worst)


class CountsPasses(nn.Module):
    """Counts passes with and without a gradient."""

    def __init__(self, model):
        super().__init__()
        self.model, self.with_gradient, self.without = model, 0, 0
        self.training = False

    def forward(self, images):
        self.with_gradient += images.requires_grad
        self.without += not images.requires_grad
        return self.model(images)


def test_a_transfer_attack_takes_gradients_from_its_source_and_is_checked_on_the_model():
    """The source has other planes, so that maximising its loss does not fool the model as often."""
    model, source = CountsPasses(Planes(classes=2)), CountsPasses(Planes(classes=2, seed=5))
    inputs = make_input(model.model, make_images(20), Linf(0.03))
    attack = APGD(inputs.threat, steps=10)
    direct = run(model.model, attack, inputs)
    outcome = run(model, attack, inputs, source=lambda attacked: source)
    assert model.with_gradient == 0 and model.without > 0
    assert source.with_gradient > 0 and source.without == 1  # to choose targets
    assert torch.equal(outcome.fooled, model.model(outcome.worst).argmax(1) != inputs.labels)
    assert 0 < outcome.fooled.sum() < direct.fooled.sum()


def test_a_transfer_attack_from_the_model_itself_is_the_direct_attack():
    model = Planes()
    inputs = make_input(model, make_images(20), Linf(0.01))
    attack = APGD(inputs.threat, steps=10)
    same = run(model, attack, inputs, source=lambda attacked: attacked)
    assert torch.equal(same.worst, run(model, attack, inputs).worst)


def test_a_view_is_made_once():
    model, made = Planes(), []

    def view(attacked):
        made.append(attacked)
        return Planes(seed=3)

    engine, inputs = Engine(model, CPU, 8), make_input(model, make_images(4), Linf(0.01))
    for _ in range(2):
        run_attack(engine, "test", APGD(inputs.threat, steps=2), inputs, source=view)
    assert made == [model]
