"""The verb as a person uses it: small, from an empty folder, with wrong input, stopped in the middle."""

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_smoothing.certification.certificates import build_frontier
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.report.certified import WRITTEN, read_certificates
from adaptive_smoothing.results import read_json

runner = CliRunner()
SMALL = ["certify", "compact-standard", "compact-robust", "--alpha", "0.8", "--sigma", "0.1", "--samples", "40"]
SMALL += ["--selection", "8", "--images", "3", "--shard-size", "2"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return runner.invoke(app, list(arguments))


def test_a_mixture_is_certified_into_its_folder(empty_folder):
    result = run(*SMALL, "--hardmax", "--failure-probability", "0.05")
    assert result.exit_code == 0, result.output
    folder = empty_folder / "runs" / "certify-compact-standard-compact-robust-0.8-smoothing"
    assert sorted(path.name for path in folder.iterdir()) == sorted(WRITTEN)
    assert "Certified accuracy" in result.output and "plug-in estimate" in result.output
    found, settings = read_certificates(folder), read_json(folder / "result.json")["settings"]
    assert len(found.correct) == 3 and settings["sigma"] == 0.1 and settings["alpha"] == pytest.approx(0.8, abs=1e-5)
    assert read_json(folder / "result.json")["models"]["hardmax"] is True


def test_the_network_is_compiled_if_asked(empty_folder, monkeypatch):
    compiled = []
    monkeypatch.setattr("torch.compile", lambda base, **options: compiled.append(base) or base)
    assert run(*SMALL, "--out", "plain").exit_code == 0 and not compiled
    assert run(*SMALL, "--compile", "--out", "compiled").exit_code == 0 and len(compiled) == 1
    assert read_json(empty_folder / "compiled" / "result.json")["settings"]["compiled"] is True


def test_a_stopped_run_goes_on_and_another_is_not_overwritten(stop_certifying):
    done = stop_certifying(at=2)
    result = run(*SMALL)
    assert result.exit_code == 130 and "run the same command again" in result.output
    assert run(*SMALL).exit_code == 0 and done == [2, 1, 1]
    again = run(*SMALL)
    assert again.exit_code == 1 and "--overwrite" in str(again.exception)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--method", "local", "--radius", "0.1"], "got --radius"),
        (["--method", "local", "--sigma", "0.1"], "got --sigma"),
        (["--method", "local", "--compile"], "got --compile,"),
        (["--sigma", "0.1", "--steps", "3"], "got --steps"),
        (["--method", "lipschitz", "--seed", "3"], "pairwise_lipschitz"),
    ],
)
def test_what_the_method_has_no_use_for_is_refused_before_there_is_a_folder(empty_folder, change, message):
    result = run("certify", "compact-robust", "--images", "2", *change)
    assert result.exit_code == 1 and message in str(result.exception)
    assert not list(empty_folder.iterdir())


def test_a_local_estimate_says_that_it_is_one(empty_folder):
    result = run("certify", "compact-robust", "--method", "local", "--images", "2", "--steps", "2")
    assert result.exit_code == 0, result.output
    assert "Estimated, not certified" in result.output and "Certified accuracy" not in result.output
    found = read_certificates(empty_folder / "runs" / "certify-compact-robust-local")
    assert not found.certified.any() and found.rows["constants"].shape == (2, 10)
    assert (found.rows["constants"] >= 0).all() and np.isfinite(found.rows["constants"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sigma", "0"], "above 0"),
        (["--samples", "0"], "at least 1 sample"),
        (["--failure-probability", "1"], "failure probability"),
        (["--alpha", "0.4"], "below 1/2"),
        (["--votes", "loud"], "hard, soft"),
        (["--bound", "normal"], "bound among"),
        (["--method", "magic"], "method among"),
        (["--norm", "L7"], "norm among"),
        (["--theorem", "none"], "theorem among"),
        (["--precision", "int8"], "precision among"),
    ],
)
def test_wrong_input_is_one_sentence(change, message):
    result = run(*SMALL, *change)
    assert result.exit_code == 1 and message in str(result.exception)


def test_a_model_without_noise_or_proof_needs_to_be_told():
    result = run("certify", "compact-robust", "--images", "2")
    assert result.exit_code == 1 and "--method local" in str(result.exception)
    result = run("certify", "compact-mixed", "--sigma", "0.1", "--samples", "10", "--images", "2")
    assert result.exit_code == 1 and "logits of its own" in str(result.exception)
    result = run("certify", "compact-robust", "--sigma", "0.1", "--hardmax")
    assert result.exit_code == 1 and "mixture" in str(result.exception)


FRONTIER = ["certify", "compact-standard", "compact-robust", "compact-standard", "--clean-accuracy", "0.5", "--hardmax"]
FRONTIER += ["--sigma", "0.1", "--samples", "40", "--selection", "8", "--images", "4", "--shard-size", "2"]


def test_several_h_make_a_frontier(empty_folder):
    folder = empty_folder / "runs" / "certify-compact-standard-at-50"
    others = folder / "another" / "journal"  # of another run, which is not at its end
    others.mkdir(parents=True)
    (others / "kept").write_text("")
    result = run(*FRONTIER)
    assert result.exit_code == 0, result.output
    found, names = read_json(folder / "frontier.json"), ("compact-robust", "compact-standard")
    runs = {name: (read_certificates(folder / name / "val"), read_certificates(folder / name)) for name in names}
    again = build_frontier(runs, 0.5)
    best, whose = again.best(found["radii"])
    assert found["best"] == best.tolist() and found["whose"] == whose and found["best"][0] > 0
    alphas = {name: member["settings"]["alpha"] for name, member in found["members"].items()}
    assert alphas == {name: member.settings["alpha"] for name, member in again.members.items()}
    assert list(folder.glob("**/journal")) == [others] and (others / "kept").exists()
    again = run(*FRONTIER)
    assert again.exit_code == 1 and "--overwrite" in str(again.exception)


def test_every_h_of_a_frontier_has_a_name_of_its_own():
    result = run(*FRONTIER[:3], "compact-robust", *FRONTIER[4:])
    assert result.exit_code == 1 and "under a name of its own" in str(result.exception)


def test_a_frontier_that_was_stopped_goes_on(stop_certifying):
    done = stop_certifying(at=7)
    assert run(*FRONTIER).exit_code == 130
    assert run(*FRONTIER).exit_code == 0 and len(done) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--alpha", "0.8"], "alpha is what is chosen"),
        (["--split", "val"], "alpha is chosen on val"),
        (["--radius", "0.1"], "all samples"),
        (["--clean-accuracy", "5"], "expected an accuracy"),
        (["--method", "local"], "local estimates"),
    ],
)
def test_a_frontier_needs_what_it_chooses_from(change, message):
    result = run(*FRONTIER, *change)
    assert result.exit_code == 1 and message in str(result.exception)


def test_several_h_without_an_accuracy_are_a_question():
    result = run("certify", "compact-standard", "compact-robust", "compact-standard", "--sigma", "0.1", "--alpha", "1")
    assert result.exit_code == 1 and "--clean-accuracy" in str(result.exception)
