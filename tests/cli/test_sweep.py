"""The verb `sweep`: its files, the choice of alpha, an interruption, its errors."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_smoothing import results
from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli import sweep as sweep_file
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.cli.sweep import parse_alphas
from adaptive_smoothing.evaluation.tradeoff import MIX_ALPHAS, load_facts, load_tradeoff
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve

pytestmark = pytest.mark.usefixtures("package")


def sweep(*arguments: str, code: int = 0) -> str:
    command = ["sweep", demo.STANDARD, demo.ROBUST, "--device", "cpu", "--set", "steps=2", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split()) + str(result.exception or "")


@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_writes_its_run_folder(tmp_path: Path) -> None:
    printed = sweep("--images", "6", "--alphas", "0,0.5,1", "--set", "batch_size=4")
    folder = tmp_path / "runs/sweep-compact-standard-compact-robust"
    assert f"{folder.as_uri()}/page.html" in printed
    run = load_tradeoff(folder)
    assert run.images == 6 and run.mix_alphas.tolist() == [0, 0.5, 1] and len(run.alphas) == 101
    assert run.settings["steps"] == 2 and run.settings["data"] == "builtin/test"
    facts = load_facts(folder)
    assert facts["models"]["g"]["name"] == demo.STANDARD and len(facts["models"]["g"]["sha256"]) == 64
    result = json.loads((folder / "result.json").read_text())
    assert result["curves"]["mix"]["accuracy"] == run.accuracy("mix").tolist()


@pytest.mark.usefixtures("no_pictures")
def test_alpha_is_chosen_on_validation_images_and_attacked() -> None:
    printed = sweep("--images", "4", "--alphas", "0,1", "--clean-accuracy", "60", "--out", "tuned")
    choice = load_facts("tuned")["choice"]
    assert choice["wanted"] == 0.6 and choice["accuracy"] >= 0.6
    assert f"{choice['images']} validation images" in printed and f"{choice['alpha']:.3f} (chosen)" in printed
    assert load_tradeoff("tuned").mix_alphas.tolist() == sorted({0, choice["alpha"], 1})
    # The alpha for any other target can be computed from the stored file.
    kept = CleanAccuracyCurve.load(Path("tuned") / VALIDATION)
    assert len(kept.low) == choice["images"] and kept.largest_setting(0.6) == choice["alpha"]


def test_alpha_is_not_reported_on_the_images_it_was_chosen_on() -> None:
    printed = sweep("--images", "4", "--split", "val", "--clean-accuracy", "0.9", code=1)
    assert "expected --split test with --clean-accuracy, got val" in printed
    assert not Path("runs").exists()


@pytest.mark.usefixtures("no_pictures")
def test_batches_and_out_do_not_change_the_result() -> None:
    for size in ("2", "5"):
        sweep("--images", "5", "--alphas", "0.6", "--set", f"batch_size={size}", "--out", size)
    first, second = load_tradeoff("2"), load_tradeoff("5")
    assert all(np.array_equal(first.rows[name], second.rows[name]) for name in ("index", "clean", "std", "mix"))


@pytest.mark.usefixtures("no_pictures")
def test_an_earlier_run_is_kept_unless_overwrite_is_given() -> None:
    sweep("--images", "2", "--alphas", "0.5")
    assert "which holds one: choose another --out, or replace it with --overwrite" in sweep("--images", "3", code=1)
    sweep("--images", "3", "--alphas", "0.5", "--overwrite")
    assert load_tradeoff("runs/sweep-compact-standard-compact-robust").images == 3


def test_a_folder_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(results.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(sweep_file, "measure_tradeoff", lambda *a, **k: pytest.fail("work was done"))
    assert "got theirs (Permission denied): choose another --out" in sweep("--out", "theirs", code=1)


def test_other_classes_are_refused(monkeypatch: pytest.MonkeyPatch, package: Callable) -> None:
    data = replace(package("cifar100"), classes=tuple(map(str, range(100))))
    monkeypatch.setattr(sweep_file.datasets, "load", lambda *a, **k: data)
    printed = sweep("--data", "cifar100", code=1)
    assert "expected a model for the 100 classes of cifar100/test, got compact-standard with 10" in printed


@pytest.mark.usefixtures("no_pictures", "ctrl_c")
def test_ctrl_c_reports_the_images_that_are_done() -> None:
    printed = sweep("--alphas", "0.5", "--set", "batch_size=2", code=130)
    assert "stopped: the result is for the 6 images that were finished" in printed
    assert load_facts("runs/sweep-compact-standard-compact-robust")["interrupted"]


@pytest.mark.usefixtures("no_pictures")
def test_other_threats() -> None:
    sweep("--images", "2", "--alphas", "0.5", "--threat", "L2:0.5", "--out", "l2")
    assert load_tradeoff("l2").settings["norm"] == "L2"
    assert "expected a threat such as" in sweep("--threat", "L7:1", code=1)


def test_settings_are_checked() -> None:
    assert "did you mean 'batch_size'?" in sweep("--set", "batchsize=2", code=1)
    assert "expected a batch_size of at least 1, got 0" in sweep("--set", "batch_size=0", code=1)
    assert "expected at least 1 step, got 0" in sweep("--set", "steps=0", code=1)


def test_alphas_are_checked() -> None:
    assert parse_alphas(None) == list(MIX_ALPHAS)
    assert parse_alphas("1, 0.5,1/4,0.5") == [0.25, 0.5, 1]
    for wrong in ("", "a", "1/0", "0.5,1.5", "-0.1"):
        with pytest.raises(ValueError, match="expected --alphas"):
            parse_alphas(wrong)


def test_a_wrong_zoo_is_noticed_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ADAPTIVE_SMOOTHING_ZOO", str(tmp_path / "none"))
    monkeypatch.setattr(sweep_file, "measure_tradeoff", lambda *a, **k: pytest.fail("work was done"))
    result = CliRunner().invoke(app, ["sweep", demo.STANDARD, "resnet18-robust", "--device", "cpu"])
    assert "expected a folder with manifest.json in $ADAPTIVE_SMOOTHING_ZOO" in str(result.exception)


def test_an_unknown_model_is_named() -> None:
    result = CliRunner().invoke(app, ["sweep", "compact-standart", demo.ROBUST])
    assert result.exit_code == 1 and "did you mean 'compact-standard'" in str(result.exception)


@pytest.mark.usefixtures("no_pictures")
def test_a_weights_file_is_identified_by_its_sha256(weights: Path) -> None:
    path = str(weights / f"{demo.ROBUST}.safetensors")
    command = f"sweep {demo.STANDARD} {path} --device cpu --set steps=1 --images 2 --alphas 1 --out x".split()
    assert CliRunner().invoke(app, command).exit_code == 0
    facts = load_facts("x")["models"]["h"]
    assert facts["name"] == path and len(facts["sha256"]) == 64 and facts["parameters"] > 0
