"""Runs are found in folders and named."""

import json
from pathlib import Path

import pytest
import torch

from adaptive_smoothing.certification.certificates import with_alpha
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.radii import evaluate_radii
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.report import radii, run_folder, verdicts
from adaptive_smoothing.report.page.dials import dials
from adaptive_smoothing.report.page.page import page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.results import read_json, write_json
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(run_folder, "png", lambda figure: b"")
    for module, figure in ((verdicts, "waterfall_figure"), (verdicts, "calibration_figure"), (radii, "radii_figure")):
        monkeypatch.setattr(module, figure, lambda result: None)


def test_runs_in_folders_inside_are_found_and_validation_images_are_not(tmp_path, toys):
    data = toys.data(6)
    for name in ("b/deep", "a", "a/val", "c/journal", "d/e/f/g"):  # the last one is too deep
        toys.write(tmp_path / name, toys.mixture(0.4), data, 0.4)
    (tmp_path / "empty").mkdir()
    assert [run.folder for run in read_runs([tmp_path])] == ["a", "deep"]
    (run,) = read_runs([tmp_path / "a"])
    assert run.name == "toy-g + toy-h, α = 0.4" and run.pictures.classes == data.classes
    assert run.facts == {"device": "a <b>test</b>"}


def test_every_run_has_a_name_of_its_own(tmp_path, toys):
    data = toys.data(6)
    for name, alpha in (("one/a", 0.4), ("one/b", 0.4), ("two/b", 0.4), ("two/c", 0.9)):
        toys.write(tmp_path / name, toys.mixture(alpha), data, alpha)
    base = "toy-g + toy-h, α = 0.4"
    assert [run.name for run in read_runs([tmp_path / "one", tmp_path / "two"])] == [
        f"{base} (a)",
        f"{base} (b), run 2",
        f"{base} (b), run 3",
        "toy-g + toy-h, α = 0.9",
    ]


def test_several_radii_are_several_runs(tmp_path, toys):
    data = toys.data(6)
    options = EvaluationOptions(alarms=False, pictures=3)
    curve = evaluate_radii(toys.mixture(0.4), data, "STD", Linf, [0.01, 0.02], options=options)
    radii.write_radii(tmp_path, curve, toys.facts(0.4), {}, data)
    runs = read_runs([tmp_path])
    assert [run.name.rpartition(" (")[2] for run in runs] == ["eps-0.01)", "eps-0.02)"]
    assert all(
        torch.equal(run.result.fooled_by, each.fooled_by) for run, each in zip(runs, curve.verdicts, strict=True)
    )


def test_a_frontier_has_the_alphas_that_were_chosen(tmp_path):
    """In both ways of naming it: its own folder, and one around it."""
    stored = Path(__file__).parents[3] / "results" / "certified"
    (direct, *_), around = read_runs([stored / "hard"]), read_runs([stored])
    alpha = json.loads((stored / "hard" / "frontier.json").read_text())["members"]["gaussian-025"]["settings"]["alpha"]
    (same,) = [run for run in around if run.name.startswith("gaussian-025") and run.settings["votes"] == "hard"]
    assert direct.settings["alpha"] == same.settings["alpha"] == alpha
    assert with_alpha(direct.result, alpha).accuracy(0.5) == same.result.accuracy(0.5)


def test_what_is_no_run_is_an_error(tmp_path, toys):
    with pytest.raises(FileNotFoundError, match="expected a run folder, found no folder"):
        read_runs([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="expected a run folder, found no folder"):
        read_runs([tmp_path / "file"])
    with pytest.raises(FileNotFoundError, match=r"expected a run with result\.json in .*, got none"):
        read_runs([tmp_path])
    toys.write(tmp_path / "run", toys.mixture(0.4), toys.data(4), 0.4)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    write_json(tmp_path / "run" / "result.json", result | {"schema": 99})
    with pytest.raises(ValueError, match="got schema 99: it was written by a newer version"):
        read_runs([tmp_path])


def test_a_mixture_that_mix_stored_has_its_clean_accuracy_and_no_robust_one(tmp_path, toys):
    folder = pretrained.find("compact-mixed")
    (run,) = read_runs([folder])
    curve = CleanAccuracyCurve.load(folder / "validation.npz")
    setting = read_json(folder / "mixture.json")["numbers"]["alpha_shift"]
    (dial,) = dials([run])
    assert (dial.parameter, dial.grid[dial.start]) == ("shift", setting) and not dial.attacked
    counts = [int(dial.clean.at(at).sum()) for at in range(len(dial.grid))]
    assert counts == [round(curve(each) * len(curve.low)) for each in dial.grid]
    assert run.result.clean_correct.mean() == curve(setting)
    assert "not attacked" in page([run])
