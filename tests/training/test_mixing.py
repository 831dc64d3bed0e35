"""Mixing networks learn: the lessons they are given, the loss, the loop, and a toy pair on which they must win."""

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD, STEP_FACTOR
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.settings import SettingsError, from_table, read_toml
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.checkpoints import CheckpointError
from adaptive_smoothing.training.mixing.attacks import Climber, TrainingPGD, beginning, climb_only
from adaptive_smoothing.training.mixing.loss import composite_loss
from adaptive_smoothing.training.mixing.recipe import LossSettings, MixerSettings, MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, train_mixing
from adaptive_smoothing.training.mixing.trainer import MixingTrainer, untrained_mixture
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.tuning.tune import tune

EPS = 0.06
SETTINGS = ["A", "B", "C", "turning", "hostile"]


# --- a toy pair whose answers are known --------------------------------------------------------------------------


class Reads(nn.Module):
    """Logits of two classes from the mean of one channel: softsign(gain (mean - 1/2)), always about as sure."""

    def __init__(self, channel: int, gain: float, scale: float) -> None:
        super().__init__()
        self.num_classes = 2
        self.early = nn.Conv2d(3, 2, 8)
        self.later = nn.Conv2d(2, 2, 1)
        self.saturate, self.flat, self.head = nn.Softsign(), nn.Flatten(), nn.Linear(2, 2)
        with torch.no_grad():
            self.early.weight.zero_()
            self.early.weight[:, channel] = torch.tensor([-1.0, 1.0])[:, None, None] / 64
            self.early.bias.copy_(torch.tensor([0.5, -0.5]))
            self.later.weight.copy_(gain * torch.eye(2)[:, :, None, None])
            self.later.bias.zero_()
            self.head.weight.copy_(scale * torch.eye(2))
            self.head.bias.zero_()
        self.eval().requires_grad_(False)

    def forward(self, images):
        return self.head(self.flat(self.saturate(self.later(self.early(images)))))


# g reads channel 1, which every attack turns around; h reads channel 0, which is weak in one image of four.
G, H = Reads(1, gain=200.0, scale=8.0), Reads(0, gain=200.0, scale=10.0)
UNSURE = Reads(0, gain=200.0, scale=2.0)


def toy_data(images: int = 256, seed: int = 0) -> ImageData:
    """Channel 0 tells the class by 0.15, beyond the reach of an attack, or in one image of four the other class by
    0.015; channel 1 always tells it, by 0.03, which an attack undoes.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (images,), generator=generator)
    sign = (2 * labels - 1).float()
    weak = torch.rand(images, generator=generator) < 0.25
    pixels = torch.full((images, 3, 8, 8), 0.5)
    pixels[:, 0] += (sign * torch.where(weak, -0.015, 0.15))[:, None, None]
    pixels[:, 1] += (sign * 0.03)[:, None, None]
    pixels += 0.02 * torch.randn(pixels.shape, generator=generator)
    return ImageData(
        images=(255 * pixels.clamp(0, 1)).round().to(torch.uint8),
        labels=labels,
        classes=("dark", "light"),
        name="toy",
        index=torch.arange(images),
    )


def recipe(setting: str = "B", epochs: int = 2, **changes) -> MixingRecipe:
    grown, hostile = setting in ("turning", "hostile"), setting == "hostile"
    table = {
        "name": "toy",
        "data": {"pad": 0, "flip": False},
        "mixer": {"kind": "second-ending" if grown else "network", "width": 4, "hidden": 8}
        | (
            {"robust_taps": ["early"]}
            if grown
            else {f"{role}_taps": ["early", "later"] for role in ("standard", "robust")}
        ),
        "attack": {"setting": setting, "eps": EPS, "steps": 4} | ({"through_robust": 0.0} if hostile else {}),
        "optimizer": {"epochs": epochs, "batch_size": 64, "lr": 0.01},
        "dial": {"scale": 1.0, "recover": 0.5, "every": 2} if grown else {},
        "evaluate_every": 100,
    }
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return from_table(MixingRecipe, table)


def trainer(folder, settings: MixingRecipe, data: ImageData | None = None, **options) -> MixingTrainer:
    data = data or toy_data()
    mixed = untrained_mixture(settings, G, H, shape=(3, 8, 8))
    options = {"watcher": quiet(folder), "save_every": 0.0, **options}
    return MixingTrainer(settings, mixed, data, data.take(slice(64)), folder, **options)


def quiet(folder) -> TrainingMonitor:
    return TrainingMonitor(folder, quiet=True, tensorboard=False)


def first_batch(run: MixingTrainer) -> TrainingBatch:
    return next(iter(run.batches(0)))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


# --- lessons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_attacks_stay_in_balls_of_many_radii(tmp_path, setting):
    run = trainer(tmp_path, recipe(setting))
    batch = first_batch(run)
    lesson = run.lesson(batch)
    clean, attacked = lesson.images.chunk(2)
    assert torch.equal(clean, batch.images)
    far = (attacked - clean).flatten(1).abs().amax(1)
    assert (far <= 1.1 * EPS + 1e-6).all() and far.max() > 0.9 * EPS and far.min() < 0.7 * EPS
    assert attacked.min() >= 0 and attacked.max() <= 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_attacks_hurt_the_mixture(tmp_path, setting):
    """Which begins as g here: right everywhere, until it is attacked."""
    settings = {"through_robust": 0.0, "steps": 10, "vary_steps": False}
    run = trainer(tmp_path, recipe(setting, attack=settings, dial={"shift": -4.0}))
    lesson = run.lesson(first_batch(run))
    mixture = run.mixed.combine(lesson.base_outputs, lesson.images)
    clean, attacked = (mixture.logits.argmax(1) == lesson.labels).float().chunk(2)
    assert clean.mean() - attacked.mean() > 0.1


def test_the_climb_is_that_of_pgd(tmp_path):
    """Step by step, as it is recorded on a GPU, or all at once."""
    run = trainer(tmp_path, recipe("A"))
    batch, threat = first_batch(run), Linf(torch.linspace(0.0, EPS, 64))
    climb = Climber(TrainingPGD(threat, climb_only, steps=5), run.mixed.gray_box())
    start = beginning(batch, threat, step=STEP_FACTOR / 5) | {"iterate": batch.images}
    expected = PGD(threat, steps=5).last_iterate(run.mixed.gray_box(), batch.images, batch.labels, batch.noise)
    for _ in range(2):  # the second batch is loaded into what the first has left
        torch.testing.assert_close(climb(start, 5)["iterate"], expected)


def test_an_adversary_in_weight_space(tmp_path):
    plain, pushed = (
        trainer(tmp_path / str(strength), recipe("hostile", epochs=1, optimizer={"weight_perturbation": strength}))
        for strength in (0.0, 0.1)
    )
    ends = [weights(run.run()) for run in (plain, pushed)]
    assert ends[1].isfinite().all() and not torch.allclose(*ends)


def test_pseudo_labels(tmp_path):
    """0 for clean images and for those attacked through h, which g withstands; 1 for the others."""
    run = trainer(tmp_path, recipe("B", attack={"through_robust": 0.25}))
    lesson = run.lesson(first_batch(run))
    clean, attacked = lesson.pseudo.chunk(2)
    assert clean.sum() == 0 and attacked[:16].sum() == 0 and attacked[16:].min() == 1
    g, h = (
        (logits.argmax(1) == lesson.labels)[64:80].float().mean()
        for logits in (lesson.base_outputs.g, lesson.base_outputs.h)
    )
    assert g == 1 and h < 0.8


def test_unfooled_images_can_be_left_out(tmp_path):
    """Kept by default: an attack that failed has still been tried. A mixture that trusts h is fooled in one of four."""
    settings = {"through_robust": 0.0, "steps": 10}
    kept = trainer(tmp_path / "a", recipe("B", dial={"shift": 6.0}, attack=settings))
    dropped = trainer(tmp_path / "b", recipe("B", dial={"shift": 6.0}, attack=settings | {"unfooled": "drop"}))
    assert kept.lesson(first_batch(kept)).weights.min() == 1
    lesson = dropped.lesson(first_batch(dropped))
    answers = dropped.mixed.combine(lesson.base_outputs, lesson.images).logits.argmax(1)
    fooled = (answers != lesson.labels)[64:]
    assert torch.equal(lesson.weights[64:].bool(), fooled) and 0 < fooled.sum() < 64


def test_a_hostile_g_says_what_it_claims(tmp_path):
    lesson = (run := trainer(tmp_path, recipe("hostile"))).lesson(first_batch(run))
    clean, attacked = lesson.base_outputs.g.chunk(2)
    torch.testing.assert_close(clean, G(lesson.images[:64]))
    assert torch.equal(attacked.argmax(1), 1 - lesson.labels[64:]) and (attacked.softmax(1).amax(1) == 1).all()


def test_the_lesson_has_the_claims_of_the_attack(tmp_path):
    run = trainer(tmp_path, recipe("hostile"))
    with torch.no_grad():
        run.model.scorer[-1].weight.normal_()
    lesson = run.lesson(first_batch(run))
    assert torch.equal(run.attack.hostile.claims, lesson.base_outputs.g[64:].argmax(1))
    told = run.mixed.with_standard(run.attack.hostile)
    lies = run.mixed.combine(lesson.base_outputs, lesson.images).logits[64:]
    torch.testing.assert_close(told(lesson.images[64:]), lies)


def test_the_error_term_counts_what_is_wrong():
    logits, labels, alpha = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.zeros(2).long(), torch.full((2,), 0.5)
    found = composite_loss(LossSettings(bce=0.0, product=0.0, error=1.0), logits, alpha, labels, torch.ones(2))
    torch.testing.assert_close(found, torch.sigmoid(torch.tensor([-1.0, 2.0])))


def test_attacked_images_weigh_what_the_recipe_says(tmp_path):
    run = trainer(tmp_path, recipe("hostile", loss={"attacked": 0.3}))
    clean, attacked = run.lesson(first_batch(run)).weights.chunk(2)
    assert (clean == 1).all() and attacked.tolist() == pytest.approx([0.3] * 64)


def test_base_classifiers_stay_as_they_are(tmp_path):
    before = [weights(model).clone() for model in (G, H)]
    run = trainer(tmp_path, recipe("B", epochs=1))
    start = weights(run.model).clone()
    run.run()
    assert all(torch.equal(weights(model), kept) for model, kept in zip((G, H), before, strict=True))
    assert not torch.equal(weights(run.model), start)


# --- loss ---------------------------------------------------------------------------------------------------------


def test_the_composite_loss_against_a_known_answer():
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    alpha, pseudo = torch.tensor([0.25]), torch.tensor([1.0])
    cross, binary, error = 0.126928, 1.386294, 0.119203
    for weights_, expected in (
        ({"ce": 1.0, "bce": 0.0, "product": 0.0}, cross),
        ({"bce": 1.5, "product": 0.0}, 1.5 * binary),
        ({"bce": 0.0, "product": 2.0}, 2 * cross * binary),
        ({"bce": 0.0, "product": 0.0, "error": 1.0}, error),
        ({"ce": 1.0, "bce": 1.5, "product": 0.2}, cross + 1.5 * binary + 0.2 * cross * binary),
    ):
        found = composite_loss(LossSettings(**weights_), logits, alpha, labels, pseudo)
        assert found.item() == pytest.approx(expected, abs=1e-5)


def test_a_saturated_alpha_has_a_finite_loss():
    for alpha in (0.0, 1.0):
        for pseudo in (0.0, 1.0):
            logits = torch.tensor([[50.0, -50.0]])
            loss = composite_loss(
                LossSettings(), logits, torch.tensor([alpha]), torch.tensor([1]), torch.tensor([pseudo])
            )
            assert loss.isfinite().all()


# --- the loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, setting):
    dialled = {"loss": {"error": 1.0, "dialled": True}} if setting in ("turning", "hostile") else {}
    settings = recipe(setting, **dialled)
    whole = trainer(tmp_path / "whole", settings)
    finished = weights(whole.run())
    first = trainer(tmp_path / "parts", settings)
    original = first.train_step

    def step(batch):
        if first.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return original(batch)

    first.train_step = step
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "parts", settings)
    assert second.resume() and second.step == 5
    assert torch.equal(weights(second.run()), finished)
    assert torch.equal(second.mixed.alpha_shift, whole.mixed.alpha_shift)


@pytest.mark.parametrize("setting", SETTINGS)
def test_in_the_arithmetic_of_a_gpu(tmp_path, setting, monkeypatch):
    """Which is bfloat16 where torch says so: everything that makes or meets features has to know."""
    monkeypatch.setattr(MixingTrainer, "_arithmetic", lambda self: torch.autocast("cpu", torch.bfloat16))
    mixer = trainer(tmp_path, recipe(setting, epochs=1, evaluate_every=1), toy_data(128)).run()
    assert weights(mixer).isfinite().all()
    assert all(value.dtype != torch.bfloat16 for value in mixer.state_dict().values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_on_a_gpu(tmp_path, setting, compiled):
    g, h = (build("preact_resnet18", width=8).eval() for _ in range(2))
    pixels, index = torch.randint(256, (128, 3, 32, 32), dtype=torch.uint8), torch.arange(128)
    data = ImageData(pixels, index % 10, tuple("abcdefghij"), "noise", index)
    taps = {"robust_taps": [], "standard_taps": []}
    settings = recipe(setting, epochs=1, evaluate_every=1, mixer=taps)
    mixed = untrained_mixture(settings, g, h)
    kept = {"folder": tmp_path, "device": "cuda", "compiled": compiled, "quiet": True}
    trained = train_mixing(mixed, data, data, Linf(EPS), recipe=settings, **kept)
    assert tune(trained, data, clean_accuracy=0.01)(data.floats().cuda()).isfinite().all()


def test_a_run_goes_on_with_the_pair_it_began_with(tmp_path):
    settings, data = recipe("B", epochs=1), toy_data(64)
    run = trainer(tmp_path, settings, data)
    run.save()
    other = untrained_mixture(settings, Reads(1, gain=100.0, scale=8.0), H, shape=(3, 8, 8))
    with pytest.raises(CheckpointError, match="was made with another pair of base classifiers"):
        MixingTrainer(settings, other, data, data.take(slice(64)), tmp_path, watcher=quiet(tmp_path)).resume()


def test_it_logs_and_validates(tmp_path):
    trainer(tmp_path, recipe("B", epochs=2, evaluate_every=1)).run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2] and {"val_clean", "val_pgd10"} <= set(rows[0])


def test_the_dial_recovers_what_is_asked_for(tmp_path):
    run = trainer(tmp_path, recipe("hostile", epochs=1))
    run.turn_dial()
    data = run.val_data
    clean = [evaluate(model, data).clean for model in (H, G, run.mixed)]
    assert clean[2] >= clean[0] + 0.5 * (clean[1] - clean[0]) - 1e-6


def test_scores_that_wander_change_nothing(tmp_path):
    """The dial follows them."""
    run = trainer(tmp_path, recipe("hostile", epochs=1))
    run.turn_dial()
    before = run.mixed.mix(run.val_data.floats()).alpha
    with torch.no_grad():
        run.model.scorer[-1].bias -= 1000
    run.turn_dial()
    torch.testing.assert_close(run.mixed.mix(run.val_data.floats()).alpha, before, atol=1e-3, rtol=0)


def test_a_trained_second_ending_has_standard_scores_and_the_alpha_it_learned(tmp_path):
    run = trainer(tmp_path, recipe("hostile", epochs=1))
    with torch.no_grad():
        run.model.scorer[-1].weight.normal_(std=30)
        run.model.scorer[-1].bias += 50
    run.turn_dial()
    images = run.val_data.floats()
    before = run.mixed.mix(images).alpha
    assert before.std() > 0.1
    run._standardize(run.model)
    score = run.model(run.mixed.base_outputs(images)).score
    assert score.mean().item() == pytest.approx(0, abs=1e-4) and score.std(correction=0).item() == pytest.approx(1)
    torch.testing.assert_close(run.mixed.mix(images).alpha, before, atol=1e-3, rtol=0)
    assert run.mixed.alpha_scale.item() == pytest.approx(run.recipe.dial.scale * run.model.spread.item())


def test_a_second_ending_can_be_trained_again(tmp_path):
    """It goes on from the scores it had, and ends with the alpha that it learned then."""
    first = trainer(tmp_path / "first", recipe("hostile", epochs=1))
    with torch.no_grad():
        first.model.scorer[-1].weight.normal_(std=30)
        first.model.scorer[-1].bias += 50
    first._standardize(first.model)
    again = MixingTrainer(
        first.recipe, first.mixed, toy_data(64), toy_data(64), tmp_path / "again", watcher=quiet(tmp_path / "again")
    )
    images = again.val_data.floats()
    again.turn_dial()
    before = again.mixed.mix(images).alpha
    assert before.std() > 0.1
    torch.testing.assert_close(again.mixed.alpha_scale, again.recipe.dial.scale * again.model.spread)
    again._standardize(again.model)
    torch.testing.assert_close(again.mixed.mix(images).alpha, before, atol=1e-3, rtol=0)
    torch.testing.assert_close(again.mixed.alpha_scale, first.mixed.alpha_scale, rtol=0.2, atol=0)


def test_the_dial_keeps_to_the_clean_accuracy_that_is_asked_for(tmp_path):
    run = trainer(tmp_path, recipe("hostile", epochs=1, dial={"clean_accuracy": 0.9}))
    run.turn_dial()
    assert run.dial.target == 0.9 and evaluate(run.mixed, run.val_data).clean >= 0.9


def test_alpha_goes_no_lower_than_it_has_to(tmp_path):
    """And further where g would not win back enough: with an h that is as sure as g it has no say at one half."""
    settings, data = recipe("hostile", dial={"low": 0.5}), toy_data(64)
    for robust, low in ((UNSURE, 0.5), (H, 0.25)):
        mixed = untrained_mixture(settings, G, robust, shape=(3, 8, 8))
        run = MixingTrainer(settings, mixed, data, data, tmp_path, watcher=quiet(tmp_path))
        assert run.mixed.alpha_range.tolist() == pytest.approx([low, 1.0], abs=0.01)
        run.turn_dial()
        assert evaluate(run.mixed, run.val_data).clean >= run.dial.target - 1e-6
        assert run.mixed.mix(run.val_data.floats()).alpha.min() >= run.mixed.alpha_range[0]


def test_a_dial_that_cannot_reach_its_target_comes_closest(tmp_path):
    run = trainer(tmp_path, recipe("hostile"))
    run.dial.target = 1.1
    run.turn_dial()
    assert run.mixed.alpha_shift.isfinite()


def test_a_trained_mixture_keeps_the_range_it_learned_with(tmp_path):
    settings, data = recipe("hostile", epochs=1, dial={"low": 0.5}), toy_data(64)
    mixed = untrained_mixture(settings, G, UNSURE, shape=(3, 8, 8)).with_alpha_range(0.7, 0.9)
    options = {"folder": tmp_path / "own", "quiet": True}
    own = train_mixing(mixed, data, data, Linf(EPS), recipe=settings, **options)
    assert own.alpha_range.tolist() == pytest.approx([0.7, 0.9])
    for number, (robust, low) in enumerate(((UNSURE, 0.5), (H, 0.25))):
        options["folder"] = tmp_path / str(number)
        trained = fit_adaptive(G, robust, data, data, settings, **options)
        assert trained.alpha_range.tolist() == pytest.approx([low, 1.0], abs=0.01)


def test_the_price_is_what_makes_turning_the_dial_change_nothing(tmp_path):
    """Against the difference that a small turn makes to the losses of clean and attacked images."""
    settings = recipe("hostile", loss={"error": 1.0, "bce": 0.0, "product": 0.0, "dialled": True})
    run = trainer(tmp_path, settings)
    lesson = run.lesson(first_batch(run))

    def losses(shift: float) -> torch.Tensor:
        mixture = run.mixed.with_sigmoid(1.0, shift).combine(lesson.base_outputs, lesson.images)
        return composite_loss(settings.loss, mixture.logits, mixture.alpha, lesson.labels, lesson.pseudo)

    with torch.no_grad():
        slopes = [half.mean().item() for half in ((losses(0.405) - losses(0.395)) / 0.01).chunk(2)]
    assert slopes[0] > 0 > slopes[1]
    run._loss(lesson)
    assert run.price.slopes.tolist() == pytest.approx(slopes, rel=0.02)
    loss = run._loss(lesson)[0].item()  # the same lesson again: the same price
    price = -slopes[0] / slopes[1]
    clean, attacked = (half.mean().item() for half in losses(0.4).chunk(2))
    assert 0.05 < price < 2 and loss == pytest.approx((clean + price * attacked) / (1 + price), rel=0.01)


def test_alpha_has_its_full_range_in_training(tmp_path):
    settings = recipe("B")
    mixed = untrained_mixture(settings, G, H, shape=(3, 8, 8)).with_alpha_range(0.8, 0.9)
    data = toy_data(64)
    run = MixingTrainer(settings, mixed, data, data, tmp_path, watcher=quiet(tmp_path))
    assert run.mixed.alpha_range.tolist() == [0, 1] and mixed.alpha_range.tolist() == pytest.approx([0.8, 0.9])
    assert run.mixed.alpha is mixed.alpha


def test_what_was_trained_before_learns_slower(tmp_path):
    run = trainer(tmp_path, recipe("hostile"))
    new, old = run.parameter_groups()
    assert old["pace"] == 0.1 and {id(p) for p in old["params"]} == {id(p) for p in run.model.tail.parameters()}
    assert len(new["params"]) + len(old["params"]) == len(list(run.model.parameters()))


def test_only_mixers_are_trained(tmp_path):
    mixed = MixedClassifier(G, H, 0.5)
    with pytest.raises(TypeError, match=r"alpha is a Mixer, got Tensor: make one with ads.MixingNetwork"):
        MixingTrainer(recipe(), mixed, toy_data(64), toy_data(64), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dial": {"low": 1.0}}, r"low to be an alpha in \[0, 1\), got 1\.0"),
        ({"loss": {"dialled": True}}, r"dial\.clean_accuracy > 0 with loss\.dialled, got 0"),
        ({"attack": {"setting": "Z"}}, "setting to be one of A, B, C, turning, hostile, got 'Z'"),
        ({"attack": {"unfooled": "maybe"}}, "unfooled to be one of keep, drop"),
        ({"attack": {"smallest": 2.0}}, "0 <= smallest <= largest"),
        ({"attack": {"through_robust": 1.0}}, r"through_robust in \[0, 1\)"),
        ({"loss": {"ce": 0.0, "bce": 0.0, "product": 0.0}}, "a loss with a positive weight"),
        ({"dial": {"recover": 1.0}}, "recover to be a share"),
        ({"dial": {"clean_accuracy": 90.0}}, "clean_accuracy to be a share"),
        ({"mixer": {"kind": "oracle"}}, "kind to be one of network, second-ending"),
        ({"optimizer": {"learning_rate": 1}}, "unknown key 'learning_rate'"),
    ],
)
def test_recipes_that_cannot_be_meant(changes, message):
    with pytest.raises(SettingsError, match=message):
        recipe("B", **changes)


def test_a_hostile_g_has_no_features_and_withstands_nothing(tmp_path):
    hostile = recipe("hostile")
    with pytest.raises(ValueError, match="second-ending for the hostile setting"):
        replace(hostile, mixer=recipe("B").mixer)
    with pytest.raises(ValueError, match=r"through_robust = 0 in the hostile setting, got 0\.5"):
        replace(hostile, attack=replace(hostile.attack, through_robust=0.5))
    mixed = untrained_mixture(recipe("B"), G, H, shape=(3, 8, 8))
    with pytest.raises(ValueError, match="taps nothing of g for the hostile setting, got a MixingNetwork"):
        MixingTrainer(hostile, mixed, toy_data(64), toy_data(64), tmp_path)


def test_the_default_recipe_fits_the_mixer(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(MixingTrainer, "run", lambda self: asked.append(self.recipe))
    data = toy_data(512)
    for number, kind in enumerate(("B", "hostile")):
        mixed = untrained_mixture(recipe(kind), G, H, shape=(3, 8, 8))
        train_mixing(mixed, data, data, Linf(EPS), folder=tmp_path / str(number), quiet=True)
    assert [found.attack.setting for found in asked] == ["C", "turning"] and asked[0].attack.eps == EPS
    assert asked[1].data.cutout == 2  # a quarter of the side


def test_g_is_as_sure_as_the_recipe_has_it_unless_the_mixture_says_so(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(MixingTrainer, "run", lambda self: asked.append(self.mixed.standard_scale.item()))
    for number, scale in enumerate((1.0, 2.0)):
        mixed = untrained_mixture(recipe("hostile"), G, H, shape=(3, 8, 8)).with_scales(scale)
        where = {"folder": tmp_path / str(number), "quiet": True}
        train_mixing(mixed, toy_data(512), toy_data(64), Linf(EPS), clean_accuracy=0.8, **where)
    assert asked == [3.0, 2.0]


def test_the_default_recipe_is_the_one_in_the_repository():
    stored = read_toml(Path(__file__).parents[2] / "recipes" / "mixing.toml", MixingRecipe)
    beside = {"evaluate_every": stored.evaluate_every}  # how often to look
    assert replace(default_recipe(stored.attack.threat), **beside) == stored


# --- what it is for -----------------------------------------------------------------------------------------------


def worst(mixed: MixedClassifier, data: ImageData) -> float:
    """Robust accuracy, the worst of PGD on the mixture, on its gray-box side and on g alone."""
    images, labels = data.floats(), data.labels
    right = mixed(images).argmax(1) == labels
    for view in (mixed, mixed.gray_box(), mixed.standard):
        attacked = PGD(Linf(EPS), steps=20)(view, images, labels)
        right &= mixed(attacked).argmax(1) == labels
    return right.float().mean().item()


@pytest.mark.filterwarnings("ignore:the gradient was zero")
@pytest.mark.parametrize("setting", ["B", "C", "turning"])
def test_a_few_steps_beat_the_fixed_alpha_on_a_toy_pair(tmp_path, setting):
    """h is as sure where it is wrong, so that one alpha takes all of g or all of h; the features tell where."""
    changes = {"loss": asdict(default_recipe(Linf(EPS)).loss)} if setting == "turning" else {}
    options = {"attack": {"steps": 8, "through_robust": 0.0}, "optimizer": {"ema": 0.0}}
    settings = recipe(setting, epochs=8, **options, **changes)
    run = trainer(tmp_path, settings, toy_data(384))
    run.run()
    val, test = toy_data(256, seed=1), toy_data(256, seed=2)
    learned = tune(run.mixed, val, clean_accuracy=0.95)
    fixed = tune(MixedClassifier(G, H, 0.5), val, clean_accuracy=0.95)
    clean = [evaluate(mixed, test).clean for mixed in (fixed, learned)]
    assert min(clean) > 0.9
    assert worst(learned, test) > worst(fixed, test) + 0.3


@pytest.mark.parametrize("kind", ["network", "second-ending"])
def test_transformers_and_convnexts_are_mixed_kept_and_loaded(tmp_path, kind):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    g = timm.create_model("convnext_atto", num_classes=2).eval()
    h = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=2).eval()
    settings = recipe("C" if kind == "network" else "turning", epochs=1)
    settings = replace(
        settings,
        mixer=MixerSettings(kind=kind, width=4, hidden=8),
        attack=replace(settings.attack, steps=1),
        optimizer=replace(settings.optimizer, batch_size=4),
    )
    data = toy_data(4)
    data = replace(data, images=data.images.repeat(1, 1, 4, 4))
    mixed = fit_adaptive(g, h, data, data, settings, folder=tmp_path / "run", quiet=True)
    mixed.save_pretrained(tmp_path / "mine")
    loaded = MixedClassifier.from_pretrained(tmp_path / "mine", standard=g, robust=h)
    assert torch.equal(loaded(data.floats()), mixed(data.floats()))


def test_the_default_recipe_trains_any_pair(tmp_path):
    """ResNets here, with images of another size than CIFAR's."""
    torch.manual_seed(0)
    g, h = (build("wide_resnet", depth=10, width=0.25, num_classes=2).eval() for _ in range(2))
    settings = default_recipe(Linf(0.03), "tiny")
    settings = replace(settings, optimizer=replace(settings.optimizer, epochs=1, batch_size=16), data=recipe().data)
    settings = replace(settings, attack=replace(settings.attack, steps=2))
    data = toy_data(32)
    mixed = untrained_mixture(settings, g, h, shape=(3, 8, 8))
    watcher = quiet(tmp_path)
    assert MixingTrainer(settings, mixed, data, data, tmp_path, watcher=watcher).run() is mixed.alpha
