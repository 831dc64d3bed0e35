import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff, save_tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve

pytestmark = pytest.mark.usefixtures("package")


@pytest.fixture(autouse=True)
def short_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ATTACK", replace(demo.ATTACK, steps=2))


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    # The terminal of a test is narrow; where lines break is not tested.
    return " ".join(result.output.split())


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("no_pictures")
def test_alpha_is_chosen_on_validation_images_and_attacked_on_test_images(tmp_path: Path) -> None:
    printed = run("--clean-accuracy", "0.5", "--images", "6")
    result = json.loads((tmp_path / "runs/demo/result.json").read_text())
    choice = result["facts"]["choice"]
    assert result["images"] == 6 and "Attacking 6 test images" in printed
    assert choice["accuracy"] >= choice["wanted"] == 0.5 and choice["images"] == 24
    assert f"The largest α with a clean accuracy of 50.0 % is {choice['alpha']:.3f}" in printed
    live = load_tradeoff("runs/demo")
    assert choice["alpha"] in live.mix_alphas and np.isin(live.mix_alphas, live.alphas).all()
    assert "no stored results" in printed and "page.html" in printed


@pytest.mark.usefixtures("no_pictures")
def test_the_number_of_images_depends_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "CPU", replace(demo.CPU, images=3))
    run("--clean-accuracy", "0.5")
    assert load_tradeoff("runs/demo").images == 3


@pytest.mark.usefixtures("no_pictures")
def test_the_stored_run_gives_the_numbers_and_the_live_run_checks_them() -> None:
    run("--clean-accuracy", "0.5", "--images", "8", "--out", "first")
    models = {"g": model_facts(demo.STANDARD), "h": model_facts(demo.ROBUST)}
    save_tradeoff(demo.STORED, load_tradeoff("first"), {"models": models})
    # 77 validation images, all of them correct up to alpha 0.625.
    CleanAccuracyCurve(np.full(77, -np.inf), np.full(77, 0.625)).save(demo.STORED / VALIDATION)
    printed = run("--clean-accuracy", "50", "--images", "4", "--out", "second")
    assert "squares are the live run on 4 images, and the lines are the stored run of the same models on 8" in printed
    assert load_tradeoff("second").images == 4
    assert "On 77 validation images" in printed and 0 < load_facts("second")["choice"]["alpha"] < 0.625

    models["h"]["sha256"] = "0" * 64
    save_tradeoff(demo.STORED, load_tradeoff("first"), {"models": models})
    assert "belong to other weights" in run("--clean-accuracy", "0.5", "--images", "4")


@pytest.fixture
def mixture(package: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_comparison: Callable) -> Path:
    """A fine-tuned tail for the tiny models, with a stored comparison with a fixed alpha."""
    folder, compared = tmp_path / "mixed", tmp_path / "compared"
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    mixed = MixedClassifier(g, h, FineTunedTail.of(h))
    mixed.save_pretrained(folder)
    accuracy_curve(mixed, datasets.load("builtin", "val")).save(folder / VALIDATION)
    compared.mkdir()
    write_comparison(compared)
    monkeypatch.setattr(demo, "MIXED", str(folder))
    monkeypatch.setattr(demo, "COMPARED", compared)
    return folder


def test_a_learned_alpha_is_compared_with_a_fixed_one(mixture: Path, tmp_path: Path) -> None:
    printed = run("--clean-accuracy", "0.6", "--images", "6")
    assert "the mixture is correct on 87.5 % of 8 test images, and on 75.0 % of 4 images under the strongest" in printed
    assert "With one α for all images, the mixture is correct on 87.5 % and 50.0 % of the same images" in printed
    assert "The mixer gives 25.0 points more robust accuracy (± 42.4)" in printed
    now = load_facts("runs/demo")["learned alpha"]
    assert now["images"] == 6
    assert f"In the live run, on 6 images, this mixture has {100 * now['clean']:.1f} %" in printed
    page = (tmp_path / "runs/demo/page.html").read_text()
    assert "One α for all images, or one for each image" in page and (tmp_path / "runs/demo/learned.png").exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_learned_alpha_of_other_models_is_left_out(mixture: Path) -> None:
    description = json.loads((mixture / "mixture.json").read_text())
    description["robust"]["sha256"] = "0" * 64
    (mixture / "mixture.json").write_text(json.dumps(description))
    assert "A mixer can choose α" not in run("--clean-accuracy", "0.5", "--images", "2")


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_during_the_learned_alpha(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "measure_learned", interrupt)
    printed = run("--clean-accuracy", "0.5", "--images", "2", code=130)
    assert "stopped: the learned α was not attacked" in printed
    assert "A mixer can choose α" in printed and "In the live run" not in printed


@pytest.mark.usefixtures("no_pictures", "ctrl_c")
def test_ctrl_c_reports_the_images_that_are_done() -> None:
    printed = run("--clean-accuracy", "0.5", code=130)
    images = load_tradeoff("runs/demo").images
    assert 0 < images < 24
    assert f"stopped: the result is for the {images} images that were finished" in printed
    assert f"This run was interrupted: its numbers are for the {images} images" in printed


def test_ctrl_c_before_anything_is_measured(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "measure_clean_accuracy", interrupt)
    assert run_main("demo") == 130
    printed = capsys.readouterr().err
    assert "stopped: there is no result yet" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("2", "expected an accuracy such as 0.9, or 90 in percent, got 2"),
        ("0.999", "this pair can reach, got 0.999: the best on 24 images is 0."),
    ],
)
def test_a_target_out_of_reach_is_one_sentence(
    wanted: str,
    message: str,
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: Callable,
) -> None:
    flipped = package("builtin")
    monkeypatch.setattr(demo.datasets, "load", lambda *a, **k: replace(flipped, labels=flipped.labels.flip(0)))
    assert run_main("demo", "--clean-accuracy", wanted) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_cannot_be_written_is_noticed_first(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "measure_clean_accuracy", lambda *a, **k: pytest.fail("work was done"))
    (tmp_path / "file").write_text("mine")
    assert run_main("demo", "--out", "file") == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "expected a folder that can be written to, got file (Not a directory): choose another --out" in printed


def test_missing_models_are_named(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo.zoo, "BUILTIN", tmp_path)
    assert run_main("demo") == 1
    assert "compact-standard" in capsys.readouterr().err


def test_on_a_cpu_the_chosen_alpha_replaces_its_neighbour() -> None:
    assert demo.CPU.mix_alphas(0.73) == [0.0, 0.5, 0.73, 1.0]
    assert demo.CPU.mix_alphas(0.995) == [0.0, 0.5, 0.7, 0.995, 1.0]
    assert demo.CPU.mix_alphas(1.0) == list(demo.CPU.alphas)
    assert demo.GPU.mix_alphas(0.73) == sorted([*demo.MIX_ALPHAS, 0.73])
