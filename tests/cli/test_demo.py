import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo, demo_learned
from adaptive_smoothing.cli.main import app, main
from adaptive_smoothing.cli.target import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.budget import Deadline
from adaptive_smoothing.evaluation.tradeoff_files import load_facts, load_tradeoff, save_tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import accuracy_curve

pytestmark = pytest.mark.usefixtures("package")


@pytest.fixture(autouse=True)
def short_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ATTACK", replace(demo.ATTACK, steps=2))


def tell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    # The terminal of a test is narrow; where lines break is not what is tested.
    return " ".join(result.output.split())


def test_the_whole_story(tmp_path: Path) -> None:
    said = tell("--clean-accuracy", "0.5", "--seconds", "60", "--images", "6")
    result = json.loads((tmp_path / "runs/demo/result.json").read_text())
    choice = result["facts"]["choice"]
    assert result["images"] == 6 and "all 6 images fit" in said
    assert choice["accuracy"] >= choice["wanted"] == 0.5 and choice["images"] == 24
    assert f"the largest α is {choice['alpha']:.3f}" in said
    live = load_tradeoff("runs/demo")
    assert choice["alpha"] in live.mix_alphas and np.isin(live.mix_alphas, live.alphas).all()
    assert "no stored run" in said and "page.html" in said
    assert (tmp_path / "runs/demo/page.html").stat().st_size > 50_000


@pytest.mark.usefixtures("no_pictures")
def test_percent_and_share_mean_the_same(tmp_path: Path) -> None:
    alphas = []
    for number, wanted in enumerate(("0.5", "50")):
        tell("--clean-accuracy", wanted, "--images", "2", "--out", f"{number}")
        alphas.append(json.loads((tmp_path / f"{number}/result.json").read_text())["facts"]["choice"]["alpha"])
    assert alphas[0] == alphas[1]


@pytest.mark.usefixtures("no_pictures")
def test_the_stored_run_is_drawn_beside_the_live_one() -> None:
    tell("--clean-accuracy", "0.5", "--images", "8", "--out", "first")
    models = {"g": model_facts(demo.STANDARD), "h": model_facts(demo.ROBUST)}
    save_tradeoff(demo.STORED, load_tradeoff("first"), {"models": models})
    # All that is known of the validation images: that 77 are right up to alpha 0.625.
    CleanAccuracyCurve(np.full(77, -np.inf), np.full(77, 0.625)).save(demo.STORED / VALIDATION)
    said = tell("--clean-accuracy", "0.5", "--images", "4", "--out", "second")
    assert "run made just now on 4 images; the lines are the stored run of the same models on 8" in said
    assert load_tradeoff("second").images == 4

    assert "on 77 validation images" in said and 0 < load_facts("second")["choice"]["alpha"] < 0.625

    models["h"]["sha256"] = "0" * 64
    save_tradeoff(demo.STORED, load_tradeoff("first"), {"models": models})
    assert "other weights than these" in tell("--clean-accuracy", "0.5", "--images", "4")


@pytest.fixture
def mixture(package: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_comparison: Callable) -> Path:
    """A second ending for the tiny models, with a stored comparison: 90 % clean, 50 % standing, 25 % with one alpha."""
    folder, compared = tmp_path / "mixed", tmp_path / "compared"
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    mixed = MixedClassifier(g, h, FineTunedTail.of(h))
    mixed.save_pretrained(folder)
    accuracy_curve(mixed, datasets.load("builtin", "val")).save(folder / VALIDATION)
    compared.mkdir()
    write_comparison(compared)
    monkeypatch.setattr(demo_learned, "MIXED", str(folder))
    monkeypatch.setattr(demo_learned, "COMPARED", compared)
    return folder


def test_a_learned_alpha_is_shown_beside_the_fixed_one(mixture: Path, tmp_path: Path) -> None:
    said = tell("--clean-accuracy", "0.6", "--images", "6", "--seconds", "60")
    assert "right on 87.5 % of 8 test images, and on 75.0 % of 4 under the strongest attacks" in said
    assert "one α for all images on 87.5 % and 50.0 % of the same. That is 25.0 points more (± 42.4)" in said
    now = load_facts("runs/demo")["learned alpha"]
    assert 1 <= now["images"] <= 6 and f"Just now, on {now['images']} images: {100 * now['clean']:.1f} %" in said
    page = (tmp_path / "runs/demo/page.html").read_text()
    assert "One α for all images, and one for each" in page and (tmp_path / "runs/demo/learned.png").exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_learned_alpha_of_other_models_is_left_out(mixture: Path) -> None:
    description = json.loads((mixture / "mixture.json").read_text())
    description["robust"]["sha256"] = "0" * 64
    (mixture / "mixture.json").write_text(json.dumps(description))
    assert "its own α" not in tell("--clean-accuracy", "0.5", "--images", "2")


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_during_the_learned_alpha(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "measured_now", interrupt)
    said = tell("--clean-accuracy", "0.5", "--images", "2", code=130)
    assert "stopped" in said and "its own α" in said and "Just now" not in said


@pytest.mark.usefixtures("no_pictures")
def test_a_slow_machine_gets_fewer_images_but_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5  # every look at the clock costs half a second
        return now

    monkeypatch.setattr(demo, "Deadline", lambda seconds: Deadline(seconds, clock))
    tell("--clean-accuracy", "0.5", "--seconds", "12", "--out", "some")
    tell("--clean-accuracy", "0.5", "--seconds", "1", "--out", "one")
    assert 1 <= load_tradeoff("one").images < load_tradeoff("some").images < 24


@pytest.mark.usefixtures("no_pictures", "ctrl_c")
def test_ctrl_c_reports_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "demo", "--device", "cpu", "--clean-accuracy", "0.5") == 130
    said = " ".join(capsys.readouterr().out.split())
    images = load_tradeoff("runs/demo").images
    assert 0 < images < 24
    assert "stopped: what follows is about the images done until then" in said
    assert f"This run was interrupted: it is about the {images} images" in said and "no result" not in said


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["adaptive-smoothing", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_ctrl_c_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "measure_speed", interrupt)
    assert run_main(monkeypatch, "demo") == 130
    said = capsys.readouterr().err
    assert "stopped: there is no result yet" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--clean-accuracy", "250"), "expected an accuracy, got 250: ask for 0.9, or for 90 in percent"),
        (("--clean-accuracy", "2"), "expected an accuracy, got 2: ask for 0.9, or for 90 in percent"),
        (("--clean-accuracy", "0.999"), "this pair can reach, got 0.999: the best on 24 images is 0."),
        (("--clean-accuracy", "0.999"), "; ask for at most that"),
    ],
)
def test_what_cannot_be_had_is_said(
    arguments: tuple[str, ...],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: Callable,
) -> None:
    flipped = package("builtin")
    monkeypatch.setattr(demo.datasets, "load", lambda *a, **k: replace(flipped, labels=flipped.labels.flip(0)))
    assert run_main(monkeypatch, "demo", *arguments) == 1
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_an_unusable_folder_is_noticed_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "measure_speed", lambda *a, **k: pytest.fail("work was done"))
    (tmp_path / "file").write_text("mine")
    assert run_main(monkeypatch, "demo", "--out", "file") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "expected a folder that can be written to, got file (File exists): choose another --out" in said


def test_missing_models_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo.zoo, "BUILTIN", tmp_path)
    assert run_main(monkeypatch, "demo") == 1
    assert "compact-standard" in capsys.readouterr().err


def test_the_chosen_alpha_takes_the_place_of_its_neighbour() -> None:
    assert demo.attacked_alphas(0.73, "cpu") == [0.0, 0.5, 0.73, 1.0]
    assert demo.attacked_alphas(0.995, "cpu") == [0.0, 0.5, 0.7, 0.995, 1.0]
    assert demo.attacked_alphas(1.0, "cpu") == list(demo.FEW_ALPHAS)
    assert demo.attacked_alphas(0.73, "cuda") == sorted([*demo.MIX_ALPHAS, 0.73])


def test_models_lists_cards() -> None:
    said = CliRunner().invoke(app, ["models"], catch_exceptions=False).output
    assert "compact-standard" in said and "93.12 %" in said and "50.00 %" in said


def test_models_lists_mixtures(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "zoo_folder", lambda: mixture.parent)
    said = CliRunner().invoke(app, ["models"], catch_exceptions=False).output
    assert "Mixtures" in said and mixture.name in said and "fine-tuned-tail" in said
    (mixture / "mixture.json").write_text('{"format": 99}')
    said = CliRunner().invoke(app, ["models"], catch_exceptions=False).output
    assert mixture.name in said and "cannot be read" in said


def test_no_traceback_for_markup_in_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(device: str) -> None:
        raise ValueError("expected images in [0, 1] of shape [batch], got [-2.1, 2.6]")

    monkeypatch.setattr(demo.Pair, "load", fail)
    assert run_main(monkeypatch, "demo") == 1
    assert "in [0, 1] of shape [batch], got [-2.1, 2.6]" in capsys.readouterr().err
