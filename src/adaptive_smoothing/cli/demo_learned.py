"""The learned alpha of the demo: the mixture of the package, and its stored comparison with a fixed alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli.target import VALIDATION
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.evaluation.comparison import Comparison, Learned, Point
from adaptive_smoothing.evaluation.tradeoff_files import has_tradeoff
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.report import run_folder
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import at_setting

MIXED = "compact-mixed"
COMPARED = Path(run_folder.__file__).parent / "stored" / MIXED


def stored_comparison(models: dict[str, Any]) -> Learned | None:
    """Return the stored comparison of a learned and a fixed alpha, or None if it is missing or of other models."""
    if not pretrained.exists(MIXED) or not has_tradeoff(COMPARED):
        return None
    description = pretrained.read(pretrained.find(MIXED))
    made_for = {"g": description["standard"], "h": description["robust"]}
    if any(made_for[letter].get("sha256") != facts["sha256"] for letter, facts in models.items()):
        return None
    return Learned(Comparison.read(COMPARED))


def measured_now(
    learned: Learned,
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    wanted: float,
    *,
    batch_size: int,
    progress: Callable[[int], None],
) -> Learned:
    """Return `learned` with the accuracies of the mixture on these images, clean and under attack.

    It is returned unchanged if the mixture cannot reach the wanted clean accuracy.
    """
    folder = pretrained.find(MIXED)
    accuracy = CleanAccuracyCurve.load(folder / VALIDATION)
    if not len(accuracy.reaching(wanted)):
        return learned
    device = next(robust.parameters()).device
    mixed = MixedClassifier.from_pretrained(folder, standard=standard, robust=robust, device=device)
    mixed = at_setting(mixed, accuracy.largest(wanted))
    attack = replace(attack, stop_when_fooled=True)
    found = evaluate(mixed, data, attack, batch_size=batch_size, progress=progress)
    facts = {"images": len(data), "clean": found.clean, "robust": found.robust, "shift": mixed.alpha_shift.item()}
    point = Point(MIXED, wanted, found.clean_correct.numpy(), found.robust_correct.numpy(), facts)
    return replace(learned, now=point)
