"""`mix`: one folder out of two models, in three modes, with the accuracy that was asked for."""

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.attacks.adaptive import preset
from adaptive_smoothing.cli import mix as verb
from adaptive_smoothing.cli.demo import ROBUST, STANDARD
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.tune import tune

RECIPE = """
name = "tiny"
[mixer]
kind = "second-ending"
hidden = 8
[attack]
setting = "hostile"
steps = 1
vary_steps = false
through_robust = 0.0
[loss]
error = 1.0
bce = 0.0
product = 0.0
[optimizer]
epochs = 1
batch_size = 8
"""

pytestmark = pytest.mark.usefixtures("package")


def mix(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["mix", STANDARD, ROBUST, "--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def error(*arguments: str) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        mix(*arguments)
    return str(caught.value)


def card(folder: str) -> dict:
    return json.loads((Path(folder) / "mixture.json").read_text())["card"]


def test_a_fixed_alpha_by_its_target():
    said = mix("--mode", "fixed", "--clean-accuracy", "60", "--out", "mine")
    data = datasets.load("cifar10", "val")
    mixed = MixedClassifier.from_pretrained("mine")
    said_clean = card("mine")["figures"]["val"]["clean"]
    assert said_clean >= 0.6 and evaluate(mixed, data).clean == pytest.approx(said_clean) and mixed.standard_scale == 3
    assert "evaluate mine --preset adaptive" in said


def test_what_a_clean_accuracy_costs_is_said(monkeypatch):
    monkeypatch.setattr("adaptive_smoothing.tuning.tune.FastAttack", partial(preset, "B"))
    said = mix("--mode", "fixed", "--clean-accuracy", "60", "--attacked", "4", "--out", "mine")
    few, attack = datasets.load("cifar10", "val").take(slice(4)), preset("B", Linf(8 / 255))
    models = MixedClassifier.from_pretrained("mine"), zoo.load(ROBUST)
    ours, alone = (evaluate(model, few, attack).robust for model in models)
    figures = card("mine")["figures"]["val"]
    assert (figures["fast"], figures["attacked"]) == (ours, 4)
    assert f"it keeps {100 * ours:.2f} % of 4 images, {ROBUST} alone {100 * alone:.2f} %." in said


def test_a_fixed_alpha_by_its_number():
    mix("--mode", "fixed", "--alpha", "0.25", "--out", "mine", "--hold")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.25 and Path("mine/robust.safetensors").exists()
    assert "choose another --out, or replace it with --overwrite" in error("--mode", "fixed", "--out", "mine")
    mix("--mode", "fixed", "--alpha", "0.5", "--out", "mine", "--overwrite")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.5


def test_an_alpha_by_its_robust_accuracy(monkeypatch):
    asked = {}

    def tuned(mixed, data, **options):
        asked.update(options, images=len(data))
        return tune(mixed, data, clean_accuracy=0.5)

    monkeypatch.setattr(verb, "tune", tuned)
    mix("--mode", "fixed", "--robust-accuracy", "40", "--threat", "L2:0.5")
    assert asked["robust_accuracy"] == 0.4 and asked["threat"].norm == "L2" and asked["images"] == 24


def test_scales_are_searched_where_that_is_asked_for(monkeypatch):
    asked = {}

    def tuned(mixed, data, **options):
        asked.update(options)
        options["say"]("40 % stand")
        return tune(mixed, data, clean_accuracy=0.5).with_scales(9.0, 2.0)

    monkeypatch.setattr(verb, "tune", tuned)
    said = mix("--mode", "fixed", "--clean-accuracy", "60", "--search", "--out", "mine")
    assert asked["clean_accuracy"] == 0.6 and asked["threat"].eps == 8 / 255 and "40 % stand" in said
    assert MixedClassifier.from_pretrained("mine").robust_scale == 2
    assert "expected --search with a --clean-accuracy" in error("--mode", "fixed", "--alpha", "0.5", "--search")


def test_an_adaptive_mixture_is_trained_and_evaluated_by_its_folder():
    Path("tiny.toml").write_text(RECIPE)
    arguments = ("--recipe", "tiny.toml", "--set", "optimizer.batch_size=12", "--clean-accuracy", "60", "--out", "mine")
    mix(*arguments)
    assert "replace it with --overwrite" in error(*arguments)
    mix(*arguments, "--overwrite", "--threat", "Linf:4/255", "--standard-scale", "7")
    made = card("mine")
    assert made["threat"] == "Linf:0.0156863" and made["recipe"]["attack"]["eps"] == 4 / 255
    assert made["recipe"]["standard_scale"] == 7 and MixedClassifier.from_pretrained("mine").standard_scale == 7
    mixed = MixedClassifier.from_pretrained("mine")
    assert isinstance(mixed.alpha, FineTunedTail) and card("mine")["recipe"]["optimizer"]["batch_size"] == 12
    found = evaluate(mixed, datasets.load("cifar10", "val")).clean
    assert found == pytest.approx(card("mine")["figures"]["val"]["clean"], abs=1e-6)
    arguments = ["evaluate", "mine", "--preset", "B", "--images", "2", "--no-alarms", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = json.loads(Path("runs/evaluate-mine-B/result.json").read_text())["models"]
    assert facts["alpha"]["kind"] == "fine-tuned-tail" and facts["robust"]["name"] == ROBUST
    assert "mixture" in result.output


def test_a_nonlinear_mixture(monkeypatch):
    monkeypatch.setattr(verb, "fit_nonlinear", small_search)
    mix("--mode", "nonlinear", "--clean-accuracy", "0.5", "--out", "mine")
    mixed = MixedClassifier.from_pretrained("mine")
    assert type(mixed.robust).__name__ == "Nonlinear" and type(mixed.standard).__name__ == "Hardmax"
    assert card("mine")["transform"]["power"] == mixed.robust.power


def small_search(g, h, val, threat, **options):
    from adaptive_smoothing.training.mixing.train import fit_nonlinear

    assert options["attacked"] == verb.FEW  # on a CPU
    return fit_nonlinear(g, h, val, threat, **options | {"attacked": 2, "tried": 1})


def test_a_card_names_the_images_it_was_trained_on(monkeypatch):
    """Those of --data, or of the recipe."""
    both = datasets.load("cifar10", "val")
    monkeypatch.setattr(datasets, "load", lambda *arguments, **options: both)
    Path("tiny.toml").write_text(RECIPE + '[data]\nname = "cifar100"\n')
    for number, (arguments, line) in enumerate(
        (
            ((), "24 images of cifar100; validation images held out"),
            (("--data", "builtin"), "12 of the validation images in the package; the others held out"),
        )
    ):
        mix("--recipe", "tiny.toml", "--clean-accuracy", "60", "--out", f"mine-{number}", *arguments)
        assert f"| trained on | {line} |" in Path(f"mine-{number}/mixture.md").read_text()


def test_a_dial_that_turns_in_training_turns_to_what_is_wanted():
    Path("tiny.toml").write_text(RECIPE + "[dial]\nrecover = 0.5\n")
    mix("--recipe", "tiny.toml", "--clean-accuracy", "60", "--out", "mine")
    assert card("mine")["recipe"]["dial"]["clean_accuracy"] == 0.6


def test_resuming_replaces_no_other_mixture():
    """One that was not trained there has left no checkpoint."""
    mix("--mode", "fixed", "--alpha", "0.25", "--out", "mine")
    assert "which holds one" in error("--resume", "--out", "mine")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.25


def test_models_in_the_wrong_order(monkeypatch):
    swapped = ["mix", ROBUST, STANDARD, "--device", "cpu", "--mode", "fixed"]
    monkeypatch.setattr(verb, "clean_accuracy", lambda *models, **options: lambda alpha: 0.8 + 0.1 * alpha)
    with pytest.raises(ValueError, match=r"a G that is more accurate than H, got .* with 80.00 % .* with 90.00 %"):
        CliRunner().invoke(app, swapped, catch_exceptions=False)


def test_what_cannot_be_meant():
    assert "one target, got --clean-accuracy and --alpha" in error("--clean-accuracy", "0.9", "--alpha", "0.5")
    assert "--alpha with --mode fixed, got --mode adaptive" in error("--alpha", "0.5")
    assert "it searches for that" in error("--mode", "nonlinear", "--robust-accuracy", "0.4")
    assert "expected --set with --mode adaptive" in error("--mode", "fixed", "--set", "optimizer.epochs=1")
    assert "expected --resume with --mode adaptive" in error("--mode", "fixed", "--resume")
    for scale in ("0", "-3"):
        assert "a positive --standard-scale, got" in error("--mode", "fixed", "--standard-scale", scale)
    assert "its g is always sure" in error("--mode", "nonlinear", "--standard-scale", "2")
    assert "unknown key 'epoch'" in error("--set", "optimizer.epoch=1")
    assert "expected a threat such as Linf:8/255" in error("--threat", "Linf")
    for mode in ("fixed", "adaptive"):  # before anything is trained
        assert "this pair can reach, got 1" in error("--mode", mode, "--clean-accuracy", "100")
