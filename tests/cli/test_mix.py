"""`mix`: three modes, each with the accuracy that was asked for."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import mix_steps
from adaptive_smoothing.cli.demo import ROBUST, STANDARD
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.cli.mix_options import Mode, choose_mode, split_changes
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo
from adaptive_smoothing.threat import Linf, Threat
from adaptive_smoothing.tuning.tune import tune

RECIPE = """
name = "tiny"
[mixer]
kind = "second-ending"
hidden = 8
[attack]
setting = "turning"
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


def test_a_fixed_alpha_has_the_wanted_clean_accuracy():
    printed = mix("--mode", "fixed", "--clean-accuracy", "60", "--out", "mine")
    data = datasets.load("cifar10", "val")
    mixed = MixedClassifier.from_pretrained("mine")
    clean = card("mine")["figures"]["val"]["clean"]
    assert clean >= 0.6 and evaluate(mixed, data).clean == pytest.approx(clean) and mixed.standard_scale == 3
    assert "evaluate mine --attack adaptive" in printed and "was not attacked: --set attacked=100" in printed


def test_the_robust_accuracy_is_measured_if_asked(monkeypatch):
    def short(threat: Threat) -> Cascade:
        return Cascade("short", threat, (Stage("pgd", PGD(threat, steps=2)),))

    monkeypatch.setattr("adaptive_smoothing.tuning.tune.fast_attack", short)
    printed = mix("--mode", "fixed", "--clean-accuracy", "60", "--set", "attacked=4", "--out", "mine")
    few, attack = datasets.load("cifar10", "val").take(slice(4)), short(Linf(8 / 255))
    models = MixedClassifier.from_pretrained("mine"), zoo.load(ROBUST)
    options = EvaluationOptions(alarms=False)
    ours, alone = (evaluate(model, few, attack, options=options).robust for model in models)
    figures = card("mine")["figures"]["val"]
    assert (figures["fast"], figures["attacked"]) == (ours, 4)
    assert f"on 4 images: the mixture {100 * ours:.2f} %, {ROBUST} alone {100 * alone:.2f} %." in printed


def test_a_fixed_alpha_can_be_given():
    mix("--mode", "fixed", "--alpha", "0.25", "--out", "mine", "--hold")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.25 and Path("mine/robust.safetensors").exists()
    assert "choose another --out, or replace it with --overwrite" in error("--mode", "fixed", "--out", "mine")
    mix("--mode", "fixed", "--alpha", "0.5", "--out", "mine", "--overwrite")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.5


def test_alpha_is_chosen_for_a_robust_accuracy(monkeypatch):
    asked = {}

    def tuned(mixed, data, **options):
        asked.update(options, images=len(data))
        return tune(mixed, data, clean_accuracy=0.5)

    monkeypatch.setattr(mix_steps, "tune", tuned)
    mix("--mode", "fixed", "--robust-accuracy", "40", "--threat", "L2:0.5")
    assert asked["robust_accuracy"] == 0.4 and asked["threat"].norm == "L2" and asked["images"] == 24


def test_scales_are_searched_if_asked(monkeypatch):
    asked = {}

    def tuned(mixed, data, **options):
        asked.update(options)
        options["log"]("40 % are robust")
        return tune(mixed, data, clean_accuracy=0.5).with_scales(9.0, 2.0)

    monkeypatch.setattr(mix_steps, "tune", tuned)
    printed = mix("--mode", "fixed", "--clean-accuracy", "60", "--set", "search=true", "--out", "mine")
    assert asked["clean_accuracy"] == 0.6 and asked["threat"].eps == 8 / 255 and "40 % are robust" in printed
    assert MixedClassifier.from_pretrained("mine").robust_scale == 2
    assert "search=true with a --clean-accuracy" in error("--mode", "fixed", "--alpha", "0.5", "--set", "search=true")


def test_an_adaptive_mixture_is_trained_and_can_be_evaluated():
    Path("tiny.toml").write_text(RECIPE)
    arguments = ("--recipe", "tiny.toml", "--set", "optimizer.batch_size=12", "--clean-accuracy", "60", "--out", "mine")
    mix(*arguments)
    assert "replace it with --overwrite" in error(*arguments)
    mix(*arguments, "--overwrite", "--threat", "Linf:4/255", "--set", "standard_scale=7")
    made = card("mine")
    assert made["threat"] == "Linf:0.0156863" and made["recipe"]["attack"]["eps"] == 4 / 255
    assert made["recipe"]["standard_scale"] == 7 and MixedClassifier.from_pretrained("mine").standard_scale == 7
    mixed = MixedClassifier.from_pretrained("mine")
    assert isinstance(mixed.alpha, FineTunedTail) and card("mine")["recipe"]["optimizer"]["batch_size"] == 12
    found = evaluate(mixed, datasets.load("cifar10", "val")).clean
    assert found == pytest.approx(card("mine")["figures"]["val"]["clean"], abs=1e-6)
    arguments = ["evaluate", "mine", "--preset", "B", "--images", "2", "--set", "alarms=false", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = json.loads(Path("runs/evaluate-mine-B/result.json").read_text())["models"]
    assert facts["alpha"]["kind"] == "fine-tuned-tail" and facts["robust"]["name"] == ROBUST
    assert "mixture" in result.output


def test_a_nonlinear_mixture_is_stored_with_its_transform(monkeypatch):
    monkeypatch.setattr(mix_steps, "fit_nonlinear", small_search)
    mix("--mode", "nonlinear", "--clean-accuracy", "0.5", "--out", "mine")
    mixed = MixedClassifier.from_pretrained("mine")
    assert type(mixed.robust).__name__ == "Nonlinear" and type(mixed.standard).__name__ == "Hardmax"
    assert card("mine")["transform"]["power"] == mixed.robust.power


def small_search(g, h, val, threat, **options):
    from adaptive_smoothing.tuning.nonlinear import fit_nonlinear

    assert options["attacked"] == mix_steps.FEW  # on a CPU
    return fit_nonlinear(g, h, val, threat, **options | {"attacked": 2, "tried": 1})


def test_a_card_names_the_images_it_was_trained_on(monkeypatch):
    """The images are those of --data, or of the recipe."""
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


def test_training_uses_the_wanted_clean_accuracy():
    Path("tiny.toml").write_text(RECIPE + "[dial]\nrecover = 0.5\n")
    mix("--recipe", "tiny.toml", "--clean-accuracy", "60", "--out", "mine")
    assert card("mine")["recipe"]["operating_point"]["clean_accuracy"] == 0.6


def test_resume_does_not_replace_a_mixture_that_was_not_trained():
    mix("--mode", "fixed", "--alpha", "0.25", "--out", "mine")
    assert "which holds one" in error("--resume", "--out", "mine")
    assert MixedClassifier.from_pretrained("mine").alpha == 0.25


def test_an_interrupted_training_is_found_before_models_are_loaded(monkeypatch):
    Path("mine").mkdir()
    Path("mine/checkpoint.safetensors").touch()
    monkeypatch.setattr(zoo, "load", None)
    assert "got mine: continue with resume=True (--resume)" in error("--mode", "adaptive", "--out", "mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--mode fixed --clean-accuracy 100", "this pair can reach"),
        ("--recipe tiny.toml --set optimizer.batch_size=500 --clean-accuracy 60", "at least 500 training images"),
        ("--recipe tiny.toml --set mixer.robust_taps=['no'] --clean-accuracy 60", "'no'"),
    ],
)
def test_a_mixture_that_is_not_made_leaves_no_folder(arguments, message):
    Path("tiny.toml").write_text(RECIPE)
    assert message in error("--out", "new/mine", *arguments.split()) and not Path("new").exists()


def test_models_in_the_wrong_order_are_an_error(monkeypatch):
    swapped = ["mix", ROBUST, STANDARD, "--device", "cpu", "--mode", "fixed"]
    monkeypatch.setattr(mix_steps, "accuracy_curve", lambda *models, **options: lambda alpha: 0.8 + 0.1 * alpha)
    with pytest.raises(ValueError, match=r"a G that is more accurate than H, got .* with 80.00 % .* with 90.00 %"):
        CliRunner().invoke(app, swapped, catch_exceptions=False)
    monkeypatch.setattr(mix_steps, "accuracy_curve", lambda *models, **options: lambda alpha: 0.8)
    with pytest.raises(ValueError, match=r"with 80.00 % .* with 80.00 % .*: they are equally accurate"):
        CliRunner().invoke(app, swapped, catch_exceptions=False)


def test_models_in_the_wrong_order_are_a_warning_with_an_alpha_of_the_user():
    swapped = ["mix", ROBUST, STANDARD, "--device", "cpu", "--mode", "fixed", "--alpha", "0.5", "--out", "swapped"]
    with pytest.warns(UserWarning, match=r"^G is not more accurate than H \(.*; alpha = 0.5 is used anyway: name G"):
        CliRunner().invoke(app, swapped, catch_exceptions=False)
    assert json.loads(Path("swapped/mixture.json").read_text())["alpha"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--clean-accuracy 0.9 --alpha 0.5", "one target, got --clean-accuracy and --alpha"),
        ("--mode adaptive --alpha 0.5", "--alpha with --mode fixed, got --mode adaptive"),
        ("--mode nonlinear --robust-accuracy 0.4", "--clean-accuracy with --mode nonlinear, got --robust-accuracy"),
        ("--mode fixed --set optimizer.epochs=1", "expected --set optimizer.epochs=1 with --mode adaptive"),
        ("--mode fixed --resume", "expected --resume with --mode adaptive"),
        ("--mode fixed --set compiled=true", "expected --set compiled with --mode adaptive"),
        ("--mode fixed --set standard_scale=0", "a positive standard_scale, got 0"),
        ("--mode nonlinear --set standard_scale=2", "standard_scale with --mode fixed or adaptive"),
        ("--set optimizer.epoch=1", "unknown key 'epoch'"),
        ("--set optimiser.epochs=1", "did you mean 'optimizer'?"),
        ("--set atacked=5", "did you mean 'attacked'?"),
        ("--mode fixed --set serch=true", "did you mean 'search'?"),
        ("--threat Linf", "expected a threat such as Linf:8/255"),
        # Before anything is trained.
        ("--mode fixed --clean-accuracy 100", "this pair can reach, got 1"),
        ("--mode adaptive --clean-accuracy 100", "this pair can reach, got 1"),
    ],
)
def test_an_option_that_does_not_fit_is_named(arguments, message):
    assert message in error(*arguments.split())


@pytest.mark.parametrize(
    ("given", "device", "alpha", "training", "mode"),
    [
        (None, "cpu", None, False, "fixed"),
        (None, "cuda", None, False, "adaptive"),
        (None, "cuda:1", 0.5, False, "fixed"),
        (None, "cpu", None, True, "adaptive"),
        (Mode.adaptive, "cpu", None, False, "adaptive"),
        (Mode.nonlinear, "cuda", None, False, "nonlinear"),
    ],
)
def test_the_mode_is_fixed_on_a_cpu_unless_another_is_meant(given, device, alpha, training, mode):
    chosen, reason = choose_mode(given, device, alpha, training)
    assert chosen == mode and bool(reason) == (given is None and alpha is None)


def test_the_default_on_a_cpu_is_said_in_one_line(monkeypatch):
    asked = []
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda *names, **options: asked.append(names) or load(*names, **options))
    printed = mix("--clean-accuracy", "60", "--out", "mine")
    assert "Mode fixed, the default on a CPU: one alpha for all images. --mode adaptive trains a mixer." in printed
    assert asked == [("builtin", "val")] and card("mine")["figures"]["val"]["images"] == 24


def test_a_training_on_a_cpu_says_how_long_it_takes():
    Path("tiny.toml").write_text(RECIPE)
    printed = mix("--recipe", "tiny.toml", "--data", "builtin", "--clean-accuracy", "60", "--out", "mine")
    assert "Training a mixer on 12 images in 1 epoch. On this CPU it takes about 0:0" in printed
    assert "step 0 of 1, tiny" in printed and "step 1 of 1, tiny" in printed


def test_a_key_of_the_recipe_is_not_mistaken_for_an_option():
    options, for_recipe = split_changes(["attack.steps=3", "attacked=5", "standard_scale=2"])
    assert for_recipe == ["attack.steps=3"] and (options.attacked, options.standard_scale) == (5, 2.0)
