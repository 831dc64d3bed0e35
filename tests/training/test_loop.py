"""The training loop, with a tiny network that learns to distinguish dark and light images."""

import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.cards import read_card
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.training import checkpoints
from adaptive_smoothing.training.checkpoints import CheckpointError, delayed_interrupts
from adaptive_smoothing.training.loop import DivergedError
from adaptive_smoothing.training.options import Stopped, TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import Trainer


def tiny_data(images=96, size=8):
    """Two classes that differ in brightness, which the smallest network can learn."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % 2
    noise = torch.randint(0, 120, (images, 3, size, size), generator=generator)
    pixels = (noise + 130 * labels[:, None, None, None]).to(torch.uint8)
    return ImageData(images=pixels, labels=labels, classes=("dark", "light"), name="tiny", index=torch.arange(images))


def recipe(method="standard", epochs=4, helper="", **changes):
    second = {"second_policy": "autoaugment"} if method == "dajat" else {}
    table = {
        "name": "tiny",
        "model": {"arch": "wide_resnet", "options": {"depth": 10, "width": 0.25, "activation": "silu"}},
        "data": {"pad": 1, **second},
        "method": {"name": method, "steps": 2, "radius_warmup": 1, "helper": str(helper)},
        "optimizer": {"epochs": epochs, "batch_size": 32, "lr": 0.05, "ema": 0.9, **changes},
        "evaluate_every": 2,
    }
    return from_table(Recipe, table)


def trainer(folder, settings, data=None, save_every=0.0):
    data = data or tiny_data()
    run = Trainer(settings, data, data.take(slice(32)), TrainingOptions(folder, quiet=True, tensorboard=False))
    run.save_every = save_every
    return run


def weights(model):
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


@pytest.mark.parametrize("method", ["standard", "at", "trades", "dajat", "iaat", "gaussian"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, method, stop_after):
    whole = trainer(tmp_path / "whole", recipe(method)).run()

    first = trainer(tmp_path / "parts", recipe(method))
    stop_after(first, steps=5)  # in the middle of the second epoch of three steps
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "parts", recipe(method))
    assert second.resume() and second.step == 5
    assert torch.equal(weights(second.run()), weights(whole))


@pytest.mark.parametrize("method", ["standard", "at", "dajat"])
def test_the_loss_falls_and_the_classes_are_learned(tmp_path, method):
    run = trainer(tmp_path, recipe(method, epochs=6))
    run.run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["accuracy"] > 0.95 and rows[-1]["loss"] < rows[0]["loss"]
    assert rows[1]["val_clean"] > 0.5 and ("val_pgd10" in rows[1]) == (method != "standard")


@pytest.fixture
def helper(tmp_path) -> Path:
    run = trainer(tmp_path / "g", recipe())
    zoo.save(run.run(), tmp_path, "g", run.card())
    return tmp_path / "g.safetensors"


def test_a_helper_is_frozen_and_named_on_the_card(helper, tmp_path):
    run = trainer(tmp_path / "h", recipe("hat", helper=helper))
    before = weights(run.helper)
    run.run()
    assert torch.equal(weights(run.helper), before)
    assert run.card()["helper"]["sha256"] == read_card(helper).sha256


@pytest.mark.parametrize("known", [True, False])
def test_a_helper_must_have_the_classes_of_the_data(helper, known, tmp_path):
    """Its predictions are labels, so more classes are an error even where those of the data were counted."""
    for classes in (("dark", "light", "grey"), ("any",)):
        labels = tiny_data().labels.clamp_max(len(classes) - 1)
        data = replace(tiny_data(), labels=labels, classes=classes, classes_known=known)
        with pytest.raises(ValueError, match=f"expected a model for the {len(classes)} classes of tiny"):
            trainer(tmp_path / "other", recipe("hat", helper=helper), data)


def test_a_run_with_a_helper_is_continued_with_the_same_helper_only(helper, tmp_path, stop_after):
    settings = recipe("hat", helper=helper)
    whole = trainer(tmp_path / "whole", settings).run()
    first = trainer(tmp_path / "parts", settings)
    stop_after(first, steps=5)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "parts", settings)
    assert second.resume()
    assert torch.equal(weights(second.run()), weights(whole))
    other = trainer(tmp_path / "g2", recipe(epochs=1))
    zoo.save(other.run(), helper.parent, "g", other.card())
    with pytest.raises(CheckpointError, match="made with another helper"):
        trainer(tmp_path / "parts", settings).resume()


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
    tensors, facts = checkpoints.load(run.options.checkpoint)
    assert facts["step"] == 3 and all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_checkpoints_are_written_after_the_first_and_the_last_epoch_and_as_often_as_requested(tmp_path):
    run = trainer(tmp_path, recipe(epochs=4), save_every=3600.0)
    save, saves = run.save, []
    run.save = lambda: (saves.append(run.step), save())
    run.run()
    assert saves == [3, 12]


def test_the_first_ctrl_c_says_that_the_step_is_finished(capfd):
    with pytest.raises(KeyboardInterrupt), delayed_interrupts() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals == [signal.SIGINT]
        assert "finishing the step and writing a checkpoint; press Ctrl-C again" in capfd.readouterr().err
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_is_stopped_at_once_can_continue_from_an_earlier_checkpoint(saved, tmp_path):
    options = TrainingOptions(tmp_path)
    if saved:
        options.checkpoint.touch()
    with pytest.raises(KeyboardInterrupt) as stop, options.stops_with_checkpoint():
        raise KeyboardInterrupt
    assert isinstance(stop.value, Stopped) == saved


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_run_interrupted_at_the_end_of_an_epoch_goes_on_from_there(tmp_path, by, stop_after):
    """By Ctrl-C, or by a batch system."""
    before = signal.getsignal(by)
    first = trainer(tmp_path, recipe(epochs=4), save_every=3600.0)
    stop_after(first, steps=6, by=by)
    with pytest.raises(Stopped):
        first.run()
    assert signal.getsignal(by) is before
    second = trainer(tmp_path, recipe(epochs=4))
    assert second.resume() and second.step == 6


def test_a_killed_run_logs_no_epoch_twice(tmp_path):
    first = trainer(tmp_path, recipe(epochs=3))
    save, saves = first.save, []

    def save_once():
        if not saves:
            save()
        saves.append(first.step)

    first.save = save_once  # as if the process was killed before the second checkpoint
    first.run()
    second = trainer(tmp_path, recipe(epochs=3))
    assert second.resume() and second.step == 3
    second.run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 6, 9]


def test_an_interrupted_epoch_is_logged_once_and_whole(tmp_path, stop_after):
    trainer(tmp_path / "whole", recipe()).run()
    first = trainer(tmp_path / "parts", recipe())
    stop_after(first, steps=5)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "parts", recipe())
    second.resume()
    second.run()
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    whole, parts = ([{k: v for k, v in json.loads(row).items() if k != "seconds"} for row in log] for log in logs)
    assert whole == parts


def test_an_incomplete_row_of_the_log_is_removed(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 3, "epoch": 1}\n{"step": 6, "ep')
    run = trainer(tmp_path, recipe(epochs=1))
    run.monitor.begin(3)
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 3, "epoch": 1}\n'
    run.run()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_a_bad_last_step_is_not_saved_over_a_good_checkpoint(tmp_path):
    run = trainer(tmp_path, recipe(epochs=2))
    original = run.train_step

    def step(batch):
        result = original(batch)
        if run.step == 5:  # the last of the second epoch, whose loss was still finite
            with torch.no_grad():
                next(run.model.parameters()).fill_(torch.nan)
        return result

    run.train_step = step
    with pytest.raises(DivergedError, match="kept at"):
        run.run()
    assert checkpoints.load(run.options.checkpoint)[1]["step"] == 3


def test_divergence_in_the_first_epoch_leaves_no_checkpoint(tmp_path):
    run = trainer(tmp_path, recipe(lr=1e30))
    with pytest.raises(DivergedError, match="nothing was saved yet"):
        run.run()


def test_other_training_images_cannot_resume(tmp_path):
    trainer(tmp_path, recipe()).save()
    with pytest.raises(checkpoints.CheckpointError, match="another training set"):
        trainer(tmp_path, recipe(), tiny_data(128)).resume()


@pytest.mark.parametrize("method", ["at", "trades", "iaat"])
def test_attacks_see_a_frozen_network_in_eval_mode(tmp_path, method):
    run = trainer(tmp_path, recipe(method))
    run.model.train()
    seen, network = [], run.network

    def recorded(images):
        seen.append((run.model.training, any(p.requires_grad for p in run.model.parameters())))
        return network(images)

    run.network = recorded
    run.examples(next(iter(run.batches(0))))
    assert set(seen) == {(False, False)}
    assert all(parameter.requires_grad for parameter in run.model.parameters())


def test_the_final_model_has_averaged_weights_and_their_statistics(tmp_path):
    run = trainer(tmp_path, recipe(epochs=2))
    averages, update = [[p.detach().clone() for p in run.model.parameters()]], run.average.update

    def follow(step):
        decay = min(0.9, (1 + step) / (10 + step))
        pairs = zip(averages[-1], run.model.parameters(), strict=True)
        averages.append([decay * average + (1 - decay) * now.detach() for average, now in pairs])
        update(step)

    run.average.update = follow
    model = run.run()
    for expected, parameter in zip(averages[-1], model.parameters(), strict=True):
        assert torch.allclose(expected, parameter, atol=1e-6)
    first = model.get_submodule("stage1.0.norms.0")
    with torch.no_grad():
        images = (batch.images for batch in run.batches(run.recipe.optimizer.epochs))
        means = [model.stem(model.normalize(batch)).mean((0, 2, 3)) for batch in images]
    assert torch.allclose(first.running_mean, torch.stack(means).mean(0), atol=1e-5)


def test_gradients_are_clipped(tmp_path):
    run = trainer(tmp_path, recipe(gradient_clip=1e-3, momentum=0.0, weight_decay=0.0))
    before = [p.detach().clone() for p in run.model.parameters()]
    run.train_step(next(iter(run.batches(0))))
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(run.model.parameters(), before, strict=True)])
    assert 0 < moved.norm().item() <= 1e-3 * run.optimizer.param_groups[0]["lr"] * 1.001


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_batch_norms_and_biases_need_not_decay(tmp_path, kind):
    """With a gradient of zero, decay is all that changes a parameter."""
    for decays in (True, False):
        settings = recipe(kind=kind, decay_norms=decays, weight_decay=0.1, warmup=0.0)
        run = trainer(tmp_path / f"{decays}", settings)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.fill_(1.0)
        run.descend(lambda run=run: (0.0 * sum(p.sum() for p in run.model.parameters()), torch.zeros(1)))
        for parameter in run.model.parameters():
            assert (parameter < 1).all() if decays or parameter.dim() > 1 else (parameter == 1).all()


def test_another_recipe_cannot_resume(tmp_path):
    trainer(tmp_path, recipe()).save()
    with pytest.raises(checkpoints.CheckpointError, match="another recipe"):
        trainer(tmp_path, replace(recipe(), seed=1)).resume()


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(checkpoints.CheckpointError, match="not a checkpoint"):
        trainer(tmp_path, recipe()).resume()


def test_another_number_of_classes_than_that_of_the_data_is_an_error(tmp_path):
    settings = recipe()
    settings = replace(settings, model=replace(settings.model, options={**settings.model.options, "num_classes": 3}))
    with pytest.raises(ValueError, match="leave it out"):
        trainer(tmp_path, settings)


def test_too_few_images_for_a_batch_are_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"lower optimizer\.batch_size"):
        trainer(tmp_path, recipe(), tiny_data(16))


def test_iaat_radii_differ_and_stay_in_bounds(tmp_path):
    run = trainer(tmp_path, recipe("iaat", epochs=4))
    run.run()
    radius = run.method.state()["radius"]
    assert radius.min() >= 0 and radius.std() > 0
    assert radius.max() <= 8 / 255 + 3 * 0.1 * 1.9 / 255 + 1e-6  # three visits after the warm-up


def test_weight_perturbation_is_undone_after_the_step(tmp_path):
    run = trainer(tmp_path, replace(recipe("at"), method=replace(recipe("at").method, weight_perturbation=0.01)))
    batch = next(iter(run.batches(0)))
    before = [weight.clone() for weight in run.weight_perturbation.weights]
    seen = {}

    def loss():
        return run.method.loss(run.network, batch, batch.images)[0]

    with run.weight_perturbation.applied(loss):
        seen["inside"] = [weight.clone() for weight in run.weight_perturbation.weights]
        seen["perturbed loss"] = loss().item()
    assert seen["perturbed loss"] > loss().item()
    for old, inside, new in zip(before, seen["inside"], run.weight_perturbation.weights, strict=True):
        assert ((inside - old).norm() / old.norm()).item() == pytest.approx(0.01, rel=1e-3)
        assert torch.allclose(old, new, atol=1e-6)


def test_training_in_a_thread_leaves_signals_alone(tmp_path):
    done = []
    worker = threading.Thread(target=lambda: done.append(trainer(tmp_path, recipe(epochs=1)).run()))
    worker.start()
    worker.join()
    assert len(done) == 1
