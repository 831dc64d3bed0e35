"""`--loader --mean --std --size`: every verb that takes a model takes models of the user."""

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from adaptive_smoothing.attacks import presets
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.cli.demo import ROBUST, STANDARD
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.evaluation import cost
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report import run_folder
from adaptive_smoothing.threat import Threat

pytestmark = pytest.mark.usefixtures("package")

# The function returns the networks of the package's models, in a module that only the user has.
CODE = f"""
from torch import nn
from adaptive_smoothing.models import zoo

class Mine(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images * 0.5 + 0.5)

def load(name):
    return Mine(zoo.load({{"mine-g": {STANDARD!r}, "mine-h": {ROBUST!r}}}[name]))
"""
OWN = ("--loader", "my_verb_code:load", "--mean", "0.5", "--std", "0.5", "--size", "16")


@pytest.fixture(autouse=True)
def my_code(package, monkeypatch):
    """The user's module, a fast preset of one step, and no figure."""

    def build(threat: Threat, *, seed: int = 0) -> Cascade:
        return Cascade("fast", threat, (Stage("near", DiversifiedPGD(threat, steps=1, seed=seed)),))

    Path("my_verb_code.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setitem(presets.PRESETS, "fast", build)
    monkeypatch.setattr(cost, "ROUNDS", 1)
    monkeypatch.setattr(run_folder, "png", lambda figure: b"")
    yield
    sys.modules.pop("my_verb_code", None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_own_models_are_evaluated_as_the_networks_that_they_hold():
    """The preprocessing of the loader's model undoes itself, so that the results are those of the package's model."""
    run("evaluate", "mine-g", *OWN, "--set", "alarms=false", "--out", "mine")
    run("evaluate", STANDARD, "--set", "alarms=false", "--out", "known")
    mine, known = (json.loads(Path(folder, "result.json").read_text()) for folder in ("mine", "known"))
    assert mine["clean"] == known["clean"]
    facts = mine["models"]["model"]
    assert facts["loader"] == "my_verb_code:load" and facts["name"] == "mine-g" and len(facts["weights"]) == 64


@pytest.mark.parametrize("hold", [[], ["--hold"]])
def test_a_mixture_of_own_models_is_stored_and_evaluated(images, hold):
    run("mix", "mine-g", "mine-h", *OWN, "--mode", "fixed", "--alpha", "0.5", "--data", "builtin", "--out", "m", *hold)
    assert Path("m/standard.safetensors").exists() == bool(hold)
    with pytest.raises(ValueError, match="expected the function my_verb_code:load, which is not imported"):
        run("evaluate", "m")
    Path("m").rename("moved")
    run("evaluate", "moved", "--loader", "my_verb_code:load", "--set", "alarms=false")
    mixed = MixedClassifier.from_pretrained("moved", allow=["my_verb_code:load"])
    expected = MixedClassifier(zoo.load(STANDARD), zoo.load(ROBUST), 0.5, standard_scale=mixed.standard_scale)
    assert torch.allclose(mixed(images.floats()), expected(images.floats()), atol=1e-4)


def test_sweep_and_certify_take_own_models(no_pictures):
    run("sweep", "mine-g", "mine-h", *OWN, "--alphas", "0.5", "--set", "steps=1", "--images", "4", "--out", "s")
    assert json.loads(Path("s/result.json").read_text())["facts"]["models"]["h"]["loader"] == "my_verb_code:load"
    settings = ("--sigma", "0.25", "--samples", "200", "--images", "2", "--out", "c")
    run("certify", "mine-h", *OWN, *settings)
    assert json.loads(Path("c/result.json").read_text())["models"]["model"]["loader"] == "my_verb_code:load"


@pytest.mark.parametrize("verb", ["evaluate", "mix", "sweep", "certify"])
def test_the_options_have_a_panel_of_their_own(verb):
    shown = CliRunner().invoke(app, [verb, "--help"]).output
    assert "Models of your own" in shown and all(name in shown for name in ("--loader", "--mean", "--std", "--size"))
