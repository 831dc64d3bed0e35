"""Check that stored runs belong to the stored models, and that their verdicts hold.

Training a model again without making its runs again is noticed here.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_smoothing.attacks.objectives import margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli.demo_models import COMPARED, STORED, stored_runs
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff
from adaptive_smoothing.mixing import mixture_card, pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.report.demo import ROLES
from adaptive_smoothing.results import read_json
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, current_setting

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PACKAGE = Path(str(resources.files("adaptive_smoothing")))
STORED_RESULTS = sorted([*RESULTS.rglob("result.json"), *STORED.parent.rglob("result.json")])


@cache
def stored_weights() -> dict[str, str]:
    """Return the sha256 of every stored weights file, by the name of its model or mixture."""
    files = [*(ROOT / "zoo").rglob("*.safetensors"), *(PACKAGE / "models" / "weights").rglob("*.safetensors")]
    names = {file: file.stem if file.parent.name in ("zoo", "weights") else file.parent.name for file in files}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for file, name in names.items()}


def named_models(result: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, sha256) of every model in a result file; the mixer of a mixture has the name of the mixture."""
    if isinstance(result, dict):
        name = result.get("name") or result.get("mixture") or name
        if "sha256" in result:
            yield name, result["sha256"]
        result = list(result.values())
    for each in result if isinstance(result, list) else ():
        yield from named_models(each, name)


@pytest.mark.parametrize("path", STORED_RESULTS, ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}")
def test_the_models_behind_a_stored_result_are_the_stored_ones(path):
    models = dict(named_models(read_json(path)))
    assert models
    assert models == {name: stored_weights().get(name) for name in models}


def test_stored_verdicts_hold_under_a_new_attack():
    """A short attack that no stored run used fools no image called robust, and most of those called fooled."""
    (ours,) = Comparison.read(COMPARED).mixtures["ours"]
    images, mixed = datasets.load("builtin", "test"), MixedClassifier.from_pretrained("compact-mixed")
    attack = PGD(Linf(8 / 255), steps=5, step_size=2 / 255, objective=margin, stop_when_fooled=True)
    robust, fooled = (
        np.flatnonzero(ours.robust_correct),
        np.flatnonzero(ours.clean_correct[: len(ours.robust_correct)] & ~ours.robust_correct),
    )
    correct = {}
    for kind, positions in (("robust", robust), ("fooled", fooled)):
        chosen = images.take(positions[:: len(positions) // 12][:12])
        attacked = attack(mixed, chosen.floats(), chosen.labels)
        assert attack.threat.distance(attacked, chosen.floats()).max() <= 8 / 255 + 1e-6
        correct[kind] = int((fp32_logits(mixed, attacked).argmax(1) == chosen.labels).sum())
    assert correct["robust"] >= 11 and correct["fooled"] <= 3


@pytest.mark.parametrize("folder", [STORED, RESULTS / "resnet18"], ids=["compact", "resnet18"])
def test_a_stored_sweep_agrees_with_the_cards_of_its_models(folder):
    models = load_facts(folder)["models"]
    assert {letter: model_facts(model["name"])["sha256"] for letter, model in models.items()} == {
        letter: model["sha256"] for letter, model in models.items()
    }
    run = load_tradeoff(folder)
    for letter, column in (("g", "std_g"), ("h", "rob_h")):
        card = zoo.names()[models[letter]["name"]].card["figures"]["test"]
        clean = run.rows[f"clean_{letter}"]
        assert clean.mean() == pytest.approx(card["clean"])
        # The same attack in other batches: one or two images of 10,000 may differ.
        assert (clean & run.rows[column]).mean() == pytest.approx(card["pgd20"], abs=2e-4)


def test_every_card_names_the_code_version():
    versions = {name: card.card["code"] for name, card in zoo.names().items()}
    assert {"compact-robust", "resnet18-robust"} <= versions.keys()
    for name, version in versions.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{10}", version), name


def test_the_stored_predictions_are_those_of_the_stored_models():
    run, images = load_tradeoff(STORED), datasets.load("builtin", "test").take(60)
    at = [list(run.rows["index"]).index(position) for position in images.index.tolist()]
    assert (run.rows["label"][at] == images.labels.numpy()).all()
    assert len(CleanAccuracyCurve.load(STORED / VALIDATION).low) == load_facts(STORED)["choice"]["images"]
    for letter, name in (("g", "compact-standard"), ("h", "compact-robust")):
        with torch.no_grad():
            correct = zoo.load(name)(images.floats()).argmax(1) == images.labels
        np.testing.assert_array_equal(run.rows[f"clean_{letter}"][at], correct.numpy())


@pytest.mark.parametrize("name", zoo.mixtures())
def test_a_stored_mixture_agrees_with_its_card(name):
    folder = pretrained.find(name)
    description = pretrained.read(folder)
    card = description["card"]
    assert (folder / "mixture.md").read_text() == mixture_card.markdown(name, description, folder / pretrained.WEIGHTS)
    recipe = from_table(MixingRecipe, card["recipe"])
    assert recipe.mixer.kind == description["alpha"]["kind"] and recipe.data.name == "cifar10"
    assert card["figures"]["val"]["clean"] == pytest.approx(card["wanted"]["clean_accuracy"], abs=5e-4)
    mixed = MixedClassifier.from_pretrained(name)
    assert mixed.standard_scale == recipe.standard_scale and mixed.alpha_range[0] == recipe.operating_point.low


def test_the_mixture_in_the_package_is_correct_where_its_accuracy_curve_says_so():
    """The built-in validation images are the first of those that the shift was chosen on."""
    folder, images = pretrained.find("compact-mixed"), datasets.load("builtin", "val").take(slice(60))
    mixed, ends = MixedClassifier.from_pretrained(folder), CleanAccuracyCurve.load(folder / VALIDATION)
    setting = current_setting(mixed)
    assert ends(setting) == pretrained.read(folder)["card"]["figures"]["val"]["clean"]
    with torch.no_grad():
        correct = mixed(images.floats()).argmax(1) == images.labels
    np.testing.assert_array_equal(correct.numpy(), ((ends.low < setting) & (setting < ends.high))[:60])


def test_the_stored_comparison_is_of_the_mixture_in_the_package():
    """The demo shows these figures: they belong to the same models, with the same predictions at the same shift."""
    assert stored_runs(0.9).keys() == set(ROLES)  # none belongs to other weights
    comparison = Comparison.read(COMPARED)
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
            correct = mixed(images.floats()).argmax(1) == images.labels
        np.testing.assert_array_equal(point.clean_correct[images.index.numpy()], correct.numpy())


@pytest.mark.parametrize(
    ("name", "run", "row"),
    [
        ("compact-mixed", resources.files("adaptive_smoothing") / "report/stored/compact-mixed", "ours"),
        ("resnet18-mixed", RESULTS / "mixtures" / "resnet18-frontier", "ours"),
    ],
)
def test_the_card_of_a_mixture_has_the_figures_of_its_stored_run(name, run, row):
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
