"""Training of mixing networks: examples, steps, checkpoints, and a toy pair on which training must pay."""

import json
from dataclasses import asdict

import pytest
import torch

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.checkpoints import CheckpointError
from adaptive_smoothing.training.mixing.recipe import default_recipe
from adaptive_smoothing.training.mixing.trainer import MixingTrainer
from adaptive_smoothing.tuning.tune import tune

SETTINGS = ["A", "B", "C", "flip-standard"]


# --- examples -----------------------------------------------------------------------------------------------------


def test_pseudo_labels_are_one_only_for_images_attacked_through_the_mixture(toy, tmp_path):
    """0 for clean images and for those attacked through h, on which g is correct; 1 for the others."""
    run = toy.trainer(tmp_path, toy.recipe("B", attack={"through_robust": 0.25}))
    examples = run.examples(toy.first_batch(run))
    clean, attacked = examples.pseudo_labels.chunk(2)
    assert clean.sum() == 0 and attacked[:16].sum() == 0 and attacked[16:].min() == 1
    outputs = examples.base_outputs
    g, h = ((logits.argmax(1) == examples.labels)[64:80].float().mean() for logits in (outputs.g, outputs.h))
    assert g == 1 and h < 0.8


def test_attacked_images_have_the_weight_of_the_recipe(toy, tmp_path):
    run = toy.trainer(tmp_path, toy.recipe("flip-standard", loss={"attacked": 0.3}))
    clean, attacked = run.examples(toy.first_batch(run)).weights.chunk(2)
    assert (clean == 1).all() and attacked.tolist() == pytest.approx([0.3] * 64)


# --- the loop -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory):
    """A finished run of setting B, with its initial weights."""
    run = toy.trainer(tmp_path_factory.mktemp("trained"), toy.recipe("B", evaluate_every=1))
    start = toy.weights(run.model).clone()
    run.run()
    return run, start


def test_training_changes_the_mixer_and_not_the_base_classifiers(toy, trained):
    run, start = trained
    assert not torch.equal(toy.weights(run.model), start)
    for base, channel, scale in ((run.mixed.standard, 1, 8.0), (run.mixed.robust, 0, 10.0)):
        fresh = type(toy.g)(channel, gain=200.0, scale=scale)
        assert torch.equal(toy.weights(base), toy.weights(fresh))


def test_epochs_are_logged_with_validation(trained):
    run, _ = trained
    rows = [json.loads(line) for line in (run.options.folder / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert {"val_clean", "val_pgd10"} <= set(rows[0]) and "val_clean" not in rows[1]  # the end is evaluated elsewhere
    assert rows[0]["val_pgd10"] <= rows[0]["val_clean"] <= 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_resumed_run_ends_with_the_same_weights(toy, tmp_path, setting, stop_after):
    balanced = {"loss": {"error": 1.0, "balanced": True}} if setting == "flip-standard" else {}
    recipe = toy.recipe(setting, **balanced)
    whole = toy.trainer(tmp_path / "whole", recipe)
    finished = toy.weights(whole.run())
    first = toy.trainer(tmp_path / "parts", recipe)
    stop_after(first, steps=3)  # the first of two steps of the second epoch
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = toy.trainer(tmp_path / "parts", recipe)
    assert second.resume() and second.step == 3
    assert torch.equal(toy.weights(second.run()), finished)
    assert torch.equal(second.mixed.alpha_shift, whole.mixed.alpha_shift)


@pytest.mark.parametrize("setting", SETTINGS)
def test_weights_stay_in_float32_when_training_in_bfloat16(toy, tmp_path, setting, monkeypatch):
    """As autocast does on a GPU."""
    # oneDNN reads memory that was never written: in bfloat16, gradients of a convolution of 1 x 1 images with stride 2.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    monkeypatch.setattr(MixingTrainer, "_arithmetic", lambda self: torch.autocast("cpu", torch.bfloat16))
    run = toy.trainer(tmp_path, toy.recipe(setting, epochs=1, evaluate_every=1))
    start = toy.weights(run.model).clone()
    mixer = run.run()
    assert all(value.dtype != torch.bfloat16 for value in mixer.state_dict().values())
    change = toy.weights(mixer) - start
    assert change.isfinite().all() and change.any()


def test_weight_perturbation_changes_the_result(toy, tmp_path):
    ends = [
        toy.weights(toy.trainer(tmp_path / str(strength), toy.recipe("flip-standard", epochs=1, optimizer=awp)).run())
        for strength in (0.0, 0.1)
        if (awp := {"weight_perturbation": strength})
    ]
    assert ends[1].isfinite().all() and not torch.allclose(*ends)


def test_a_run_is_not_resumed_with_another_pair(toy, tmp_path):
    recipe, data = toy.recipe("B", epochs=1), toy.data(64)
    toy.trainer(tmp_path, recipe, data).save()
    other = toy.mixture(recipe, g=toy.other_g)
    with pytest.raises(CheckpointError, match="was made with another pair of base classifiers"):
        toy.trainer(tmp_path, recipe, data, other).resume()


def test_alpha_has_its_full_range_in_training(toy, tmp_path):
    recipe = toy.recipe("B")
    mixed = toy.mixture(recipe).with_alpha_range(0.8, 0.9)
    run = toy.trainer(tmp_path, recipe, toy.data(64), mixed)
    assert run.mixed.alpha_range.tolist() == [0, 1] and mixed.alpha_range.tolist() == pytest.approx([0.8, 0.9])
    assert run.mixed.alpha is mixed.alpha


def test_the_tail_has_a_smaller_learning_rate(toy, tmp_path):
    run = toy.trainer(tmp_path, toy.recipe("flip-standard", mixer={"tail_lr_factor": 0.2}))
    new, old = run.parameter_groups()
    assert set(old["params"]) == set(run.model.tail.parameters())
    assert len(new["params"]) + len(old["params"]) == len(list(run.model.parameters()))
    run.train_step(toy.first_batch(run))
    rates = [group["lr"] for group in run.optimizer.param_groups]
    assert rates[1] == pytest.approx(0.2 * rates[0]) and rates[0] > 0


def test_only_mixers_are_trained(toy, tmp_path):
    mixed = MixedClassifier(toy.g, toy.h, 0.5)
    with pytest.raises(TypeError, match=r"alpha is a Mixer, got Tensor: make one with ads.MixingNetwork"):
        toy.trainer(tmp_path, toy.recipe(), toy.data(64), mixed)


# --- the result ---------------------------------------------------------------------------------------------------


def worst_case(mixed: MixedClassifier, data, threat: Linf) -> float:
    """Robust accuracy under PGD on the mixture, on its gray-box view and on g alone."""
    images, labels = data.floats(), data.labels
    correct = mixed(images).argmax(1) == labels
    for view in (mixed, mixed.gray_box(), mixed.standard):
        attacked = PGD(threat, steps=20)(view, images, labels)
        correct &= mixed(attacked).argmax(1) == labels
    return correct.float().mean().item()


@pytest.fixture(scope="module")
def fixed(toy):
    """The best fixed alpha at 95 % clean accuracy, and its clean and robust accuracy."""
    mixed = tune(MixedClassifier(toy.g, toy.h, 0.5), toy.data(256, seed=1), clean_accuracy=0.95)
    test = toy.data(256, seed=2)
    return evaluate(mixed, test).clean, worst_case(mixed, test, Linf(toy.EPS))


@pytest.mark.filterwarnings("ignore:the gradient was zero")
@pytest.mark.parametrize("setting", ["B", "C", "flip-standard"])
def test_a_few_steps_are_better_than_a_fixed_alpha(toy, fixed, tmp_path, setting):
    """h is as confident where it is incorrect, so a fixed alpha is all of g or all of h. The features show more."""
    loss = {"loss": asdict(default_recipe(Linf(toy.EPS)).loss)} if setting == "flip-standard" else {}
    options = {"attack": {"steps": 6, "through_robust": 0.0}, "optimizer": {"ema": 0.0, "lr": 0.02}}
    run = toy.trainer(tmp_path, toy.recipe(setting, epochs=8, **options, **loss), toy.data(192))
    run.run()
    learned = tune(run.mixed, toy.data(256, seed=1), clean_accuracy=0.95)
    test = toy.data(256, seed=2)
    assert min(evaluate(learned, test).clean, fixed[0]) > 0.9
    assert worst_case(learned, test, Linf(toy.EPS)) > fixed[1] + 0.3
