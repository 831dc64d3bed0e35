"""The stored runs and mixtures are of the stored models: retraining one without the others is noticed here."""

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_smoothing.cli.demo import STORED
from adaptive_smoothing.cli.demo_learned import stored_comparison
from adaptive_smoothing.cli.target import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.tradeoff_files import load_facts, load_tradeoff
from adaptive_smoothing.mixing import mixture_card, pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts
from adaptive_smoothing.results import read_json
from adaptive_smoothing.settings import from_table
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import current_setting

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("folder", [STORED, RESULTS / "resnet18"], ids=["compact", "resnet18"])
def test_the_run_is_of_the_models_that_are_stored(folder):
    models = load_facts(folder)["models"]
    assert {letter: model_facts(model["name"])["sha256"] for letter, model in models.items()} == {
        letter: model["sha256"] for letter, model in models.items()
    }
    run = load_tradeoff(folder)
    for letter, column in (("g", "std_g"), ("h", "rob_h")):
        card = zoo.names()[models[letter]["name"]].card["figures"]["test"]
        clean = run.rows[f"clean_{letter}"]
        assert clean.mean() == pytest.approx(card["clean"])
        # The same attack, other batches: an image or two of 10,000 may differ.
        assert (clean & run.rows[column]).mean() == pytest.approx(card["pgd20"], abs=2e-4)


def test_every_stored_model_says_which_code_made_it():
    versions = {name: card.card["code"] for name, card in zoo.names().items()}
    assert {"compact-robust", "resnet18-robust"} <= versions.keys()
    for name, version in versions.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{10}", version), name


def test_the_stored_answers_are_those_the_models_give_here():
    run, images = load_tradeoff(STORED), datasets.load("builtin", "test").take(60)
    at = [list(run.rows["index"]).index(position) for position in images.index.tolist()]
    assert (run.rows["label"][at] == images.labels.numpy()).all()
    assert len(CleanAccuracyCurve.load(STORED / VALIDATION).low) == load_facts(STORED)["choice"]["images"]
    for letter, name in (("g", "compact-standard"), ("h", "compact-robust")):
        with torch.no_grad():
            right = zoo.load(name)(images.floats()).argmax(1) == images.labels
        np.testing.assert_array_equal(run.rows[f"clean_{letter}"][at], right.numpy())


@pytest.mark.parametrize("name", pretrained.names())
def test_a_stored_mixture_is_what_its_card_says(name):
    folder = pretrained.find(name)
    description = pretrained.read(folder)
    card = description["card"]
    assert (folder / "mixture.md").read_text() == mixture_card.markdown(name, description, folder / pretrained.WEIGHTS)
    recipe = from_table(MixingRecipe, card["recipe"])
    assert recipe.mixer.kind == description["alpha"]["kind"] and recipe.data.name == "cifar10"
    assert card["figures"]["val"]["clean"] == pytest.approx(card["wanted"]["clean_accuracy"], abs=5e-4)
    mixed = MixedClassifier.from_pretrained(name)
    assert mixed.standard_scale == recipe.standard_scale and mixed.alpha_range[0] == recipe.dial.low


def test_the_mixture_in_the_package_is_right_where_its_dial_says_so():
    """The images in the package are the first of those that the dial was set on."""
    folder, images = pretrained.find("compact-mixed"), datasets.load("builtin", "val").take(slice(60))
    mixed, ends = MixedClassifier.from_pretrained(folder), CleanAccuracyCurve.load(folder / VALIDATION)
    setting = current_setting(mixed)
    assert ends(setting) == pretrained.read(folder)["card"]["figures"]["val"]["clean"]
    with torch.no_grad():
        right = mixed(images.floats()).argmax(1) == images.labels
    np.testing.assert_array_equal(right.numpy(), ((ends.low < setting) & (setting < ends.high))[:60])


def test_the_stored_comparison_is_of_the_mixture_in_the_package():
    """The demo says these figures of what the package holds: the same models, the same answers at the same dial."""
    models = {"g": model_facts("compact-standard"), "h": model_facts("compact-robust")}
    comparison = stored_comparison(models).comparison
    assert all(comparison.facts["models"][letter]["sha256"] == model["sha256"] for letter, model in models.items())
    fixed, *_, ours = comparison.mixtures
    assert {fixed, ours} == {"best fixed alpha", "ours"}
    images = datasets.load("builtin", "test").take(60)
    for point in comparison.mixtures[ours]:
        numbers = point.facts["numbers"]
        mixed = MixedClassifier.from_pretrained("compact-mixed")
        assert (
            mixed.alpha_scale.item() == numbers["alpha_scale"] and mixed.alpha_range.tolist() == numbers["alpha_range"]
        )
        mixed = mixed.with_sigmoid(numbers["alpha_scale"], numbers["alpha_shift"])
        with torch.no_grad():
            right = mixed(images.floats()).argmax(1) == images.labels
        np.testing.assert_array_equal(point.clean_correct[images.index.numpy()], right.numpy())


@pytest.mark.parametrize(
    ("name", "run", "row"),
    [
        ("compact-mixed", resources.files("adaptive_smoothing") / "report/stored/compact-mixed", "ours"),
        ("resnet18-mixed", RESULTS / "mixtures" / "resnet18-frontier", "ours"),
        ("resnet18-network-a", RESULTS / "mixtures" / "resnet18-settings-adaptive", "network, setting A"),
        ("resnet18-network-b", RESULTS / "mixtures" / "resnet18-settings-adaptive", "network, setting B"),
        ("resnet18-network-c", RESULTS / "mixtures" / "resnet18-frontier", "network, setting C"),
    ],
)
def test_a_card_says_what_was_measured_of_the_mixture_as_it_is(name, run, row):
    described, result = pretrained.read(pretrained.find(name)), read_json(run / "result.json")
    (found,) = (one for one in result["mixtures"] if one["mixture"] == row and one["wanted"] == 0.9)
    shift, scale = (found["numbers"][number] for number in ("alpha_shift", "alpha_scale"))
    assert described["numbers"] == found["numbers"] | {"alpha_shift": pytest.approx(shift, abs=1e-5 * scale)}
    attacked = found["attacks"]["adaptive"]
    assert described["card"]["figures"]["test"] == {
        "images": result["images"],
        "clean": found["clean"],
        "adaptive": attacked["robust"],
        "attacked": attacked["images"],
    }
