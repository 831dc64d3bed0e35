"""Memory, frozen weights, views and transfer attacks."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toys import ATTACKS, CPU, Planes, make_images, make_input, run

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine import engine as engine_module
from adaptive_smoothing.attacks.engine.arithmetic import BFLOAT16, FULL_PRECISION
from adaptive_smoothing.attacks.engine.engine import SIZES, Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.attacks.engine.recorder import RecordingError
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


# --- the engine of a GPU, on a machine without one ------------------------------------------------------

GIB = 2**30


@pytest.fixture
def gpu_engine(monkeypatch):
    """A function that makes the engine of a GPU whose batches may take 4 GiB, for a model with `row` bytes per row."""

    def make(row=None, batch_size=None):
        def measured(model, images):
            if row == "too large":
                raise torch.OutOfMemoryError("CUDA out of memory")
            return row

        monkeypatch.setattr(engine_module, "bytes_per_image", measured)
        monkeypatch.setattr(engine_module, "batch_bytes", lambda device: 4 * GIB)
        monkeypatch.setattr(engine_module, "Recorder", lambda device: None)
        monkeypatch.setattr(engine_module.Engine, "arithmetic", lambda self, inputs: FULL_PRECISION)
        return Engine(Planes(), torch.device("cuda"), batch_size)

    return make


def test_sizes_rise_in_steps_of_at_most_an_eighth():
    assert SIZES[0] == 8 and list(SIZES) == sorted(set(SIZES))
    assert all(8 * (later - earlier) <= earlier for earlier, later in pairwise(SIZES))


@pytest.mark.parametrize(
    ("jobs", "arithmetic", "shape", "rows"),
    [
        (1, BFLOAT16, (3, 32, 32), 32),
        (33, BFLOAT16, (3, 32, 32), 34),
        (1000, BFLOAT16, (3, 32, 32), 1024),
        (1025, BFLOAT16, (3, 32, 32), 1088),
        (9000, BFLOAT16, (3, 32, 32), 2048),
        (1, FULL_PRECISION, (3, 32, 32), 8),
        (9, FULL_PRECISION, (3, 32, 32), 9),
        (1, BFLOAT16, (3, 224, 224), 8),
        (3, BFLOAT16, (1, 28, 28), 128),
    ],
)
def test_a_gpu_has_batches_of_few_sizes(gpu_engine, jobs, arithmetic, shape, rows):
    assert gpu_engine().rows(jobs, arithmetic, math.prod(shape)) == rows


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_a_batch_size_that_is_given_is_the_largest(gpu_engine, batch_size):
    engine = gpu_engine(batch_size=batch_size)
    assert engine.rows(1000, BFLOAT16, 3072) == batch_size
    assert Engine(Planes(), CPU, batch_size).rows(3, BFLOAT16, 3072) == min(3, batch_size)


@pytest.mark.parametrize(
    ("row", "rows"),
    [(2**20, 2048), (4 * 2**20, 768), (2**29, 8), (8 * GIB, 8), ("too large", 8), (None, 2048 * 64)],
)
def test_the_batch_fits_into_memory(gpu_engine, row, rows):
    """Rows that cannot be measured (None) are counted by the size of the images, which have 48 values here."""
    inputs = make_input(Planes(), make_images(4), Linf(0.01))
    assert gpu_engine(row)._fitting_rows(inputs) == rows


def test_fast_arithmetic_is_tried_on_no_more_images_than_fit(network):
    """The examples of an evaluation are eight images, and memory may suffice for fewer."""
    images = make_images(8, (3, 8, 8), 0, 1)
    inputs = make_input(network, images, Linf(0.012))
    engine = Engine(LittleMemory(network, 4), CPU, examples=lambda: images)
    run_attack(engine, "test", APGD(inputs.threat, steps=2), inputs)
    assert engine.size == 4


# --- recorded steps -------------------------------------------------------------------------------------


class PretendedRecorder:
    """Makes a step and returns a graph that makes the next ones, or fails to record them."""

    def __init__(self, error=None):
        self.error = error

    def record(self, step):
        step()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(replay=step)


def run_with_recorder(network, monkeypatch, error):
    inputs = make_input(network, make_images(6, (3, 8, 8), 0, 1), Linf(0.012))
    attack, engine = APGD(inputs.threat, steps=4), Engine(network, CPU, 64, precise=True)
    engine._recorder = PretendedRecorder(error)
    monkeypatch.setattr(engine, "_new_recorder", lambda: None)
    return engine, run_attack(engine, "test", attack, inputs), run(network, attack, inputs, 64)


def test_the_step_before_a_recording_is_one_of_the_steps(network, monkeypatch):
    _, found, expected = run_with_recorder(network, monkeypatch, None)
    assert torch.equal(found.worst, expected.worst) and torch.equal(found.queries, expected.queries)
    assert found.queries.min() > 1


def test_a_model_that_cannot_be_recorded_is_attacked_without_recording(network, monkeypatch):
    with pytest.warns(UserWarning, match="this model cannot be recorded, so attacks take longer: not permitted"):
        engine, found, expected = run_with_recorder(network, monkeypatch, RecordingError("not permitted"))
    assert torch.equal(found.worst, expected.worst) and torch.equal(found.queries, expected.queries)
    assert engine.size == 64


def test_an_error_of_the_model_is_not_taken_for_one_of_recording(network, monkeypatch):
    with pytest.raises(RuntimeError, match="mine"):
        run_with_recorder(network, monkeypatch, RuntimeError("mine"))


def test_memory_that_runs_out_while_recording_halves_the_batch(network, monkeypatch):
    engine, found, expected = run_with_recorder(network, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    assert torch.equal(found.fooled, expected.fooled) and engine.size == 32
