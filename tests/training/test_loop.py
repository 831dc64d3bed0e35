import json
import os
import signal
import threading
from dataclasses import replace

import pytest
import torch

from adaptive_smoothing import checkpoints
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.settings import from_table
from adaptive_smoothing.training.averaging import MovingAverage, measure_statistics, statistics_kept
from adaptive_smoothing.training.loop import DivergedError, Trainer
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.watching import Watcher


def tiny_data(images=96, size=8):
    """Two classes told apart by brightness, which the smallest network can learn."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % 2
    noise = torch.randint(0, 120, (images, 3, size, size), generator=generator)
    pixels = (noise + 130 * labels[:, None, None, None]).to(torch.uint8)
    return ImageData(images=pixels, labels=labels, classes=("dark", "light"), name="tiny", index=torch.arange(images))


def recipe(method="standard", epochs=4, **changes):
    table = {
        "name": "tiny",
        "model": {"arch": "wide_resnet", "options": {"depth": 10, "width": 0.25, "activation": "silu"}},
        "data": {"pad": 1},
        "method": {"name": method, "steps": 2, "radius_warmup": 1},
        "optimizer": {"epochs": epochs, "batch_size": 32, "lr": 0.05, "ema": 0.9, **changes},
        "evaluate_every": 2,
    }
    return from_table(Recipe, table)


def trainer(folder, settings, data=None):
    data = data or tiny_data()
    return Trainer(settings, data, data.take(slice(32)), folder, watcher=Watcher(folder, quiet=True, tensorboard=False))


def weights(model):
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


@pytest.mark.parametrize("method", ["standard", "at", "trades", "iaat", "gaussian"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, method):
    whole = trainer(tmp_path / "whole", recipe(method)).run()

    first = trainer(tmp_path / "parts", recipe(method))
    stop_after(first, steps=5)  # in the middle of the second epoch of three steps
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "parts", recipe(method))
    assert second.resume() and second.step == 5
    assert torch.equal(weights(second.run()), weights(whole))


def stop_after(run, steps):
    """Ctrl-C in the middle of a run, at a known step."""
    original = run.train_step

    def step(batch):
        if run.step == steps - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(batch)

    run.train_step = step


@pytest.mark.parametrize("method", ["standard", "at"])
def test_it_learns(tmp_path, method):
    run = trainer(tmp_path, recipe(method, epochs=6))
    run.run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["accuracy"] > 0.95 and rows[-1]["loss"] < rows[0]["loss"]
    assert rows[1]["val_clean"] > 0.5 and ("val_pgd10" in rows[1]) == (method == "at")


def test_divergence_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    run = trainer(tmp_path, recipe(epochs=3))
    original = run.train_step

    def step(batch):
        if run.step == 4:
            with torch.no_grad():
                next(run.model.parameters()).fill_(torch.nan)
        return original(batch)

    run.train_step = step
    with pytest.raises(DivergedError, match="last good checkpoint"):
        run.run()
    tensors, facts = checkpoints.load(run.checkpoint)
    assert facts["step"] == 3 and all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_a_killed_run_logs_no_epoch_twice(tmp_path):
    first = trainer(tmp_path, recipe(epochs=3))
    save, saves = first.save, []

    def save_once():
        if not saves:
            save()
        saves.append(first.step)

    first.save = save_once  # as if it had been killed before the second checkpoint
    first.run()
    second = trainer(tmp_path, recipe(epochs=3))
    assert second.resume() and second.step == 3
    second.run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 6, 9]


def test_another_recipe_cannot_resume(tmp_path):
    run = trainer(tmp_path, recipe())
    run.save()
    with pytest.raises(checkpoints.CheckpointError, match="another recipe"):
        trainer(tmp_path, replace(recipe(), seed=1)).resume()


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(checkpoints.CheckpointError, match="not a checkpoint"):
        trainer(tmp_path, recipe()).resume()


def test_too_few_images_for_a_batch(tmp_path):
    with pytest.raises(ValueError, match=r"lower optimizer\.batch_size"):
        trainer(tmp_path, recipe(), tiny_data(16))


def test_iaat_radii_move_apart_and_stay_legal(tmp_path):
    run = trainer(tmp_path, recipe("iaat", epochs=4))
    run.run()
    radius = run.method.state()["radius"]
    assert radius.min() >= 0 and radius.std() > 0
    assert radius.max() <= 8 / 255 + 3 * 0.1 * 1.9 / 255 + 1e-6  # three visits after the warm-up


def test_weight_perturbation_is_undone_after_the_step(tmp_path):
    run = trainer(tmp_path, replace(recipe("at"), method=replace(recipe("at").method, weight_perturbation=0.01)))
    batch = next(iter(run.batches(0)))
    before = [weight.clone() for weight in run.adversary.weights]
    seen = {}

    def loss():
        return run._loss(batch, batch.images)[0]

    with run.adversary.pushed(loss):
        seen["inside"] = [weight.clone() for weight in run.adversary.weights]
    for old, inside, new in zip(before, seen["inside"], run.adversary.weights, strict=True):
        assert ((inside - old).norm() / old.norm()).item() == pytest.approx(0.01, rel=1e-3)
        assert torch.allclose(old, new, atol=1e-6)


def test_moving_average_follows_its_formula():
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
        average = MovingAverage(model, 0.5)
        model.weight.fill_(3.0)
        average.update(step=1000)
        with average.swapped_in():
            assert model.weight.item() == pytest.approx(2.0)
    assert model.weight.item() == 3.0


def test_statistics_are_the_plain_mean_over_batches():
    model = torch.nn.BatchNorm1d(3).eval()
    batches = [torch.randn(50, 3) + shift for shift in (0.0, 1.0, 5.0)]
    measure_statistics(model, batches)
    assert torch.allclose(model.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-5)
    assert torch.allclose(model.running_var, torch.stack([b.var(0) for b in batches]).mean(0), atol=1e-5)
    assert not model.training and model.momentum == 0.1
    kept = model.running_mean.clone()
    with statistics_kept(model):
        measure_statistics(model, [torch.randn(50, 3) + 9])
    assert torch.equal(model.running_mean, kept)


def test_training_in_a_thread_leaves_signals_alone(tmp_path):
    done = []
    worker = threading.Thread(target=lambda: done.append(trainer(tmp_path, recipe(epochs=1)).run()))
    worker.start()
    worker.join()
    assert len(done) == 1
