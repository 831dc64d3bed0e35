"""The four models of the demo, and the stored runs of the package that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from adaptive_smoothing.cli.console import Count, TimeBar
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.evaluation.stored import load_verdict
from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel, facts_of
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.report.demo import FIXED, LEARNED, ROBUST_ALONE, STANDARD_ALONE, StoredRun
from adaptive_smoothing.runs.folder import has_result, read_result
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve, at_setting

STANDARD, ROBUST, MIXED = "compact-standard", "compact-robust", "compact-mixed"
# The run of `sweep` on the whole test set, and the comparison of a learned with a fixed alpha.
STORED = Path(__file__).parents[1] / "report" / "stored" / "compact"
COMPARED = STORED.with_name(MIXED)
# The run of `evaluate --attack standard` on h.
STORED_ROBUST = STORED.with_name(ROBUST)
# What the page calls them.
STORED_RUNS = {
    STORED: "g + h without scales, PGD-20, 10,000 images",
    COMPARED: "mixtures, adaptive",
    STORED_ROBUST: "h, AutoAttack, 1,000 images",
}


@dataclass(frozen=True)
class DemoModel:
    """A model of the demo, and the facts about it in its run folder."""

    model: nn.Module
    facts: dict[str, Any]


def load_models(wanted: float, device: str, console: Console) -> dict[str, DemoModel]:
    """Return the models by role, both mixtures at the largest setting with the wanted clean accuracy.

    The settings are chosen on validation images: from stored curves, or for a fixed alpha at which no run is stored,
    on those of the package.
    """
    loaded = LoadedModel.load(MIXED, None, None, device)
    assert isinstance(loaded.model, MixedClassifier)
    g, h = loaded.parts["g"], loaded.parts["h"]
    shift = CleanAccuracyCurve.load(pretrained.find(MIXED) / VALIDATION).largest_setting(wanted)
    learned = at_setting(loaded.model, shift)
    fixed = MixedClassifier(g, h, 0.5, standard_scale=learned.standard_scale, robust_scale=learned.robust_scale)
    points = stored_points(wanted)
    alpha = points[FIXED].facts["numbers"]["alpha"] if points else _measured_alpha(fixed, wanted, console)
    models = {"g": facts_of(g), "h": facts_of(h)}
    numbers = {"alpha": alpha, "standard_scale": fixed.standard_scale.item()}
    return {
        LEARNED: DemoModel(learned, loaded.facts | {"numbers": loaded.facts["numbers"] | {"alpha_shift": shift}}),
        FIXED: DemoModel(fixed.with_alpha(alpha), models | numbers),
        ROBUST_ALONE: DemoModel(h, {"model": models["h"]}),
        STANDARD_ALONE: DemoModel(g, {"model": models["g"]}),
    }


def _measured_alpha(fixed: MixedClassifier, wanted: float, console: Console) -> float:
    """Return the largest alpha with the wanted clean accuracy on the validation images of the package."""
    val = datasets.load("builtin", "val")
    with TimeBar(console) as bar:
        count = Count(bar, len(val), "validation images predicted, to choose one α")
        return accuracy_curve(fixed, val, batch_size=50, progress=count).largest_setting(wanted)


def stored_runs(wanted: float) -> dict[str, StoredRun]:
    """Return the stored runs of the models by role; without those that are missing or belong to other weights."""
    found = {role: StoredRun.of_point(point) for role, point in stored_points(wanted).items()}
    if has_result(STORED) and _of_the_package(load_facts(STORED)["models"]):
        sweep, letters = load_tradeoff(STORED), {ROBUST_ALONE: "h", STANDARD_ALONE: "g"}
        found |= {role: StoredRun.of_base(sweep, letter) for role, letter in letters.items()}
        if has_result(STORED_ROBUST) and read_result(STORED_ROBUST)["models"]["model"] == model_facts(ROBUST):
            verdict = load_verdict(STORED_ROBUST)  # AutoAttack is stronger than the PGD of the sweep
            stronger = StoredRun(found[ROBUST_ALONE].clean, verdict.robust_correct.numpy(), "AutoAttack")
            found[ROBUST_ALONE] = stronger
    return found


def stored_points(wanted: float) -> dict[str, Point]:
    """Return the stored points of both mixtures at a clean accuracy, by role; none if one of them is missing."""
    if not has_result(COMPARED) or not _of_the_package((comparison := Comparison.read(COMPARED)).facts["models"]):
        return {}
    fixed, *_, learned = comparison.mixtures.values()
    points = {LEARNED: learned, FIXED: fixed}
    found = {role: point for role, each in points.items() for point in each if point.wanted == wanted}
    return found if len(found) == len(points) else {}


def _of_the_package(models: Mapping[str, Any]) -> bool:
    """Return whether the models of a stored run have the weights of those of the package."""
    names = {"g": STANDARD, "h": ROBUST}
    return all(models[letter]["sha256"] == model_facts(name)["sha256"] for letter, name in names.items())
