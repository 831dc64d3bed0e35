"""The verb on tiny models: results, options, wrong input, interruption."""

import json

import numpy as np
import pytest
from scipy.special import ndtri
from typer.testing import CliRunner

from adaptive_smoothing.certification.options import METHODS, SmoothingOptions
from adaptive_smoothing.cli.main import app, load
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.certified import WRITTEN, read_certificates
from adaptive_smoothing.results import read_json

# The tiny models are certain under this noise: all 40 samples of an image agree, and its radius is known.
SMALL = ["certify", "compact-standard", "compact-robust", "--alpha", "0.8", "--sigma", "0.001", "--samples", "40"]
SMALL += ["--images", "3", "--set", "selection=8", "--set", "shard_size=2"]
UNANIMOUS = 0.001 * ndtri(0.001 ** (1 / 40))


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few_validation_samples(monkeypatch):
    monkeypatch.setattr("adaptive_smoothing.cli.certify.VALIDATION_SAMPLES", 16)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_mixture_is_certified_into_its_folder(package, tmp_path):
    result = run(*SMALL, "--hardmax", "--set", "failure_probability=0.05")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "certify-compact-standard-compact-robust-0.8-smoothing"
    assert sorted(path.name for path in folder.iterdir()) == sorted(WRITTEN)
    assert "Certified accuracy" in result.output and "plug-in estimate" in result.output
    found, settings = read_certificates(folder), read_json(folder / "result.json")["settings"]
    assert settings["sigma"] == 0.001 and settings["alpha"] == pytest.approx(0.8, abs=1e-5)
    assert settings["selection"] == 8 and settings["failure probability"] == 0.05
    assert read_json(folder / "result.json")["models"]["hardmax"] is True
    closed = 0.001 * (ndtri(0.05 ** (1 / 40)) - ndtri(1 / 1.6))
    assert found.rows["radius"] == pytest.approx(np.full(3, closed), rel=1e-4)


def test_the_network_is_compiled_on_demand(package, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr("torch.compile", lambda base, **options: compiled.append(base) or base)
    result = run(*SMALL, "--out", "plain", "--json")
    assert result.exit_code == 0 and not compiled
    assert json.loads(result.stdout) == {"folder": "plain"} | read_json(tmp_path / "plain" / "result.json")
    assert run(*SMALL, "--set", "compiled=true", "--out", "compiled").exit_code == 0 and len(compiled) == 1
    assert read_json(tmp_path / "compiled" / "result.json")["settings"]["compiled"] is True


def test_an_interrupted_run_continues_and_a_finished_one_is_not_overwritten(package, stop_certifying):
    done = stop_certifying(at=2)
    result = run(*SMALL)
    assert result.exit_code == 130 and "the same command" in result.output
    assert run(*SMALL).exit_code == 0 and done == [2, 1, 1]
    again = run(*SMALL)
    assert again.exit_code == 1 and "--overwrite" in str(again.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "local", "--set", "radius=0.1"], "--set radius applies to --method smoothing only"),
        (["--method", "local", "--sigma", "0.1"], "--sigma applies to --method smoothing only"),
        (["--method", "local", "--votes", "soft"], "--votes applies to --method smoothing only"),
        (["--method", "local", "--samples", "50"], "--samples applies to --method smoothing only"),
        (["--method", "local", "--set", "compiled=true"], "--set compiled applies to --method smoothing only"),
        (["--sigma", "0.1", "--set", "steps=3"], "--set steps applies to --method local only"),
        (["--method", "local", "--set", "theorem=paper"], "--method smoothing and lipschitz only"),
        (["--sigma", "0.1", "--set", "selektion=3"], "did you mean 'selection'?"),
        (["--method", "local", "--set", "eps=much"], "8/255"),
        (["--method", "lipschitz"], "pairwise_lipschitz"),
    ],
)
def test_an_option_of_another_method_is_refused_before_a_folder_is_made(package, tmp_path, arguments, message):
    result = run("certify", "compact-robust", "--images", "2", *arguments)
    assert result.exit_code == 1 and message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_the_help_of_set_lists_every_field_of_the_options():
    shown = {each.name: each for each in load("certify").params if each.param_type_name == "option"}
    keys = shown["changes"].help.removeprefix("Change ").partition(":")[0].replace(" or ", ", ").split(", ")
    assert sorted(keys) == sorted({name for method in METHODS.values() for name in vars(method())})
    assert shown["samples"].default == SmoothingOptions().samples


def test_the_norm_and_a_wanted_radius_are_settings(package, tmp_path):
    """Images of 3 x 16 x 16 numbers: a radius of 1e-5 in Linf is 2.8e-4 in L2, which 40 unanimous votes certify."""
    result = run(*SMALL, "--set", "norm=linf", "--set", "radius=1e-5")
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    found = read_certificates(folder)
    assert found.settings["norm"] == "Linf" and found.settings["pixels"] == 768
    assert found.settings["wanted radius"] == pytest.approx(1e-5 * np.sqrt(768))
    assert (found.rows["radius"] >= 1e-5).all()


def test_a_local_estimate_is_called_an_estimate(package, tmp_path):
    result = run("certify", "compact-robust", "--method", "local", "--images", "2", "--set", "steps=2")
    assert result.exit_code == 0, result.output
    assert "Estimated, not certified" in result.output and "Certified accuracy" not in result.output
    found = read_certificates(tmp_path / "runs" / "certify-compact-robust-local")
    assert not found.certified.any() and found.rows["constants"].shape == (2, 10)
    assert (found.rows["constants"] >= 0).all() and np.isfinite(found.rows["constants"]).all()
    assert found.settings["steps"] == 2 and found.settings["eps"] == 8 / 255 and found.settings["norm"] == "Linf"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sigma", "0"], "sigma > 0"),
        (["--samples", "0"], "at least 1 sample"),
        (["--set", "failure_probability=1"], "failure probability"),
        (["--set", "radius=0"], "wanted radius above 0"),
        (["--set", "shard_size=0"], "shard_size of at least 1"),
        (["--alpha", "0.4"], "below 1/2"),
        (["--votes", "loud"], "hard, soft"),
        (["--method", "magic"], "method to be one of"),
        (["--set", "norm=L7"], "norm to be one of"),
        (["--set", "theorem=none"], "theorem to be one of"),
        (["--set", "precision=int8"], "precision to be one of"),
    ],
)
def test_wrong_input_is_explained(package, change, message):
    result = run(*SMALL, *change)
    assert result.exit_code == 1 and message in str(result.exception)


def test_a_model_that_nothing_certifies_is_refused(empty_folder):
    result = run("certify", "compact-robust", "--images", "2")
    assert result.exit_code == 1 and "--method local" in str(result.exception)
    result = run("certify", "compact-mixed", "--sigma", "0.1", "--samples", "10", "--images", "2")
    assert result.exit_code == 1 and "replace the logits of h" in str(result.exception)
    result = run("certify", "compact-robust", "--sigma", "0.1", "--hardmax")
    assert result.exit_code == 1 and "mixture" in str(result.exception)


FRONTIER = ["certify", "compact-standard", "compact-robust", "compact-standard", "--clean-accuracy", "0.5", "--hardmax"]
FRONTIER += ["--sigma", "0.001", "--samples", "40", "--images", "6", "--set", "selection=8", "--set", "shard_size=3"]


def test_several_h_make_a_frontier(package, few_validation_samples, tmp_path):
    """H predicts the same for all samples, so it wins with any alpha above 1/2; its accuracy and radii are known."""
    folder = tmp_path / "runs" / "certify-compact-standard-at-50"
    others = folder / "another" / "journal"  # of an unfinished run
    others.mkdir(parents=True)
    (others / "kept").write_text("")
    data = package("builtin").take(slice(6))
    correct = {
        name: (zoo.load(name)(data.floats()).argmax(1) == data.labels).float().mean().item()
        for name in ("compact-robust", "compact-standard")
    }
    assert correct["compact-robust"] < 0.5 < correct["compact-standard"]
    result = run(*FRONTIER)
    assert result.exit_code == 0, result.output
    assert "compact-robust is left out" in result.output
    found = read_json(folder / "frontier.json")
    assert list(found["members"]) == ["compact-standard"]
    assert found["members"]["compact-standard"]["settings"]["alpha"] == 1
    assert len(found["radii"]) >= 2 and found["radii"][0] == 0
    for radius, best, name in zip(found["radii"], found["best"], found["whose"], strict=True):
        reached = radius <= UNANIMOUS
        assert best == pytest.approx(correct["compact-standard"] if reached else 0)
        assert name == ("compact-standard" if reached else None)
    assert read_certificates(folder / "compact-standard").rows["radius"] == pytest.approx(UNANIMOUS, rel=1e-4)
    assert list(folder.glob("**/journal")) == [others] and (others / "kept").exists()
    again = run(*FRONTIER)
    assert again.exit_code == 1 and "--overwrite" in str(again.exception)


def test_every_h_of_a_frontier_needs_its_own_name(package):
    result = run(*FRONTIER[:3], "compact-robust", *FRONTIER[4:])
    assert result.exit_code == 1 and "each with a different name" in str(result.exception)


def test_an_interrupted_frontier_continues(package, few_validation_samples, stop_certifying):
    done = stop_certifying(at=6)
    assert run(*FRONTIER).exit_code == 130
    assert run(*FRONTIER).exit_code == 0 and len(done) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--alpha", "0.8"], "--clean-accuracy chooses alpha"),
        (["--split", "val"], "alpha is chosen on val"),
        (["--set", "radius=0.1"], "all samples"),
        (["--set", "norm=Linf"], "expected L2"),
        (["--clean-accuracy", "5"], "expected an accuracy"),
        (["--method", "local", "--sigma", "0.1"], "local estimates"),
    ],
)
def test_options_that_do_not_suit_a_frontier_are_refused(package, change, message):
    result = run(*FRONTIER, *change)
    assert result.exit_code == 1 and message in str(result.exception)


def test_a_clean_accuracy_needs_g_and_h(package):
    result = run("certify", "compact-robust", "--clean-accuracy", "0.5", "--sigma", "0.1")
    assert result.exit_code == 1 and "got one model" in str(result.exception)


def test_several_h_need_a_clean_accuracy(package):
    result = run("certify", "compact-standard", "compact-robust", "compact-standard", "--sigma", "0.1", "--alpha", "1")
    assert result.exit_code == 1 and "--clean-accuracy" in str(result.exception)
