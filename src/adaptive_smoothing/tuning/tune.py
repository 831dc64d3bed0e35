"""Choose the setting of a mixture, alpha or the shift of a learned alpha, that gives a requested accuracy.

A clean accuracy is met exactly, from one pass over validation images. A robust accuracy needs attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import cast

from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade, PlainAttack
from adaptive_smoothing.attacks.presets import fast_attack
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.runs.progress import ignore_progress
from adaptive_smoothing.settings.checks import warn_user
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.tuning.curves import (
    CleanAccuracyCurve,
    accuracy_curve,
    at_setting,
    check_share,
    fixed_alpha_curve,
)

# The paper's factor for the logits of g. A more confident g changes fewer of the predictions that h is confident of.
STANDARD_SCALE = 3.0
# Number of attacks on the data in the search for a robust accuracy.
EVALUATIONS = 7
# The search for the most robust mixture multiplies scales by the first factors, repeatedly, and the width of the range
# of alpha by the second ones.
SCALE_FACTORS, RANGE_FACTORS = (0.5, 2.0), (0.5, 0.25)

RobustAccuracy = Callable[[nn.Module], float]
Log = Callable[[str], None]

# Functions that multiply one scale of a mixture by a factor. The first one applies to a learned alpha only.
RESCALINGS: tuple[Callable[[MixedClassifier, float], MixedClassifier], ...] = (
    lambda mixed, factor: mixed.with_sigmoid(factor * mixed.alpha_scale, mixed.alpha_shift),
    lambda mixed, factor: mixed.with_scales(factor * mixed.standard_scale, mixed.robust_scale),
    lambda mixed, factor: mixed.with_scales(mixed.standard_scale, factor * mixed.robust_scale),
)


@memory_given_back()
def tune(
    mixed: MixedClassifier,
    data: ImageData,
    *,
    clean_accuracy: float | None = None,
    robust_accuracy: float | None = None,
    threat: Threat | None = None,
    attack: Cascade | PlainAttack | None = None,
    attacked: int | None = None,
    log: Log = ignore_progress,
) -> MixedClassifier:
    """Return the view of `mixed` that has a requested accuracy on `data`, by its alpha or its alpha_shift.

    - `clean_accuracy` alone: the most robust setting that has it. One pass over the data is exact.
    - `clean_accuracy` with a `threat` or an `attack`: the most robust mixture with that clean accuracy, over scales of
      the logits and the range of a learned alpha as well. This takes five attacks, nine for a learned alpha, and one
      more for each further step that improves.
    - `robust_accuracy` with a `threat` or an `attack`: the most accurate setting that has it, found by seven attacks.
      This assumes that robust accuracy does not decrease with the setting, except for the noise of attacks.

    Args:
        mixed: the mixture, whose alpha or alpha_shift is chosen.
        clean_accuracy, robust_accuracy: the requested accuracy, a share such as 0.9.
        data: validation images; results on test images that were used for tuning cannot be reported.
        threat, attack: attack with the preset `fast` in this threat model, or with this attack.
        attacked: attack only this number of images, the first ones; default: all.
        log: called with a line of text for each attack and for the clean accuracy that was chosen (`log=print`).

    Examples:
        >>> tuned = ads.tune(mixed, val, clean_accuracy=0.9)
        >>> ads.evaluate(tuned, val).clean >= 0.9
        True
    """
    values = (clean_accuracy, robust_accuracy, threat, attack)
    names = ("clean_accuracy", "robust_accuracy", "threat", "attack")
    given = [name for name, value in zip(names, values, strict=True) if value is not None]
    if (clean_accuracy is None) == (robust_accuracy is None) or len(given) > 2 or given == ["robust_accuracy"]:
        raise ValueError(
            "expected a clean_accuracy, or a robust_accuracy with a threat or an attack, got "
            f"{' and '.join(given) or 'none of them'}: one setting meets one target; "
            "tune(mixed, data, clean_accuracy=0.9) or tune(mixed, data, robust_accuracy=0.4, threat=ads.Linf(8 / 255))"
        )
    if clean_accuracy is not None and len(given) == 1:
        return with_clean_accuracy(mixed, accuracy_curve(mixed, data), clean_accuracy, log)
    robust = robust_accuracy_under(data.take(slice(attacked)), attack or cast(Threat, threat), log)
    if clean_accuracy is not None:
        return _most_robust(mixed, data, clean_accuracy, robust)
    assert robust_accuracy is not None
    check_share(robust_accuracy, "robust accuracy")
    return _most_accurate(mixed, data, robust_accuracy, robust)


def robust_accuracy_under(
    data: ImageData, against: Threat | Cascade | PlainAttack, log: Log = ignore_progress
) -> RobustAccuracy:
    """Return a function from a model to its robust accuracy on `data`. For a threat, the attack is the preset fast."""
    attack = replace(fast_attack(against), audit=()) if isinstance(against, Threat) else against

    def robust(model: nn.Module) -> float:
        found = evaluate(model, data, attack, options=EvaluationOptions(alarms=False))
        log(f"robust accuracy {100 * found.robust:.2f} % on {len(data):,} images with {model!r}")
        return found.robust

    return robust


def with_clean_accuracy(
    mixed: MixedClassifier, curve: CleanAccuracyCurve, target: float, log: Log = ignore_progress
) -> MixedClassifier:
    """Return the view with the largest setting that has the clean accuracy `target`, by the curve of the mixture."""
    setting = curve.largest_setting(target)
    log(curve.describe(setting))
    if setting == curve.limits[1] and curve(setting) - target > 1 / len(curve.low):
        wanted = f"a clean accuracy of {100 * target:.4g} % was requested"
        found = f"the most robust setting already has {100 * curve(setting):.2f} %"
        warn_user(f"{wanted}, but {found}")
    return at_setting(mixed, setting)


def _most_robust(mixed: MixedClassifier, data: ImageData, target: float, robust: RobustAccuracy) -> MixedClassifier:
    """Return the most robust view with the clean accuracy `target`, over scales and ranges of alpha.

    One scale after the other is changed by a step in both directions, and by further steps while robustness improves.
    """

    def attacked(view: MixedClassifier) -> tuple[float, MixedClassifier]:
        """Return the robust accuracy of a view at the target, or -1 if it cannot reach the target, and the view."""
        curve = accuracy_curve(view, data)
        if not curve.reaches(target):
            return -1.0, view
        view = at_setting(view, curve.largest_setting(target))
        return robust(view), view

    start = with_clean_accuracy(mixed, accuracy_curve(mixed, data), target)
    best = robust(start), start
    for rescale in RESCALINGS if mixed.learns_alpha else RESCALINGS[1:]:
        for found, factor in [(attacked(rescale(best[1], factor)), factor) for factor in SCALE_FACTORS]:
            while found[0] > best[0]:
                best, found = found, attacked(rescale(found[1], factor))
    others = _narrower_ranges(best[1], data, target) if mixed.learns_alpha else ()
    return max([best, *map(attacked, others)], key=itemgetter(0))[1]


def _narrower_ranges(mixed: MixedClassifier, data: ImageData, target: float) -> list[MixedClassifier]:
    """Return views with a narrower range around the fixed alpha that reaches the target, or none if none does."""
    curve = fixed_alpha_curve(mixed, data)
    if not curve.reaches(target):
        return []
    alpha = curve.largest_setting(target)
    ranges = ([(1 - factor) * alpha + factor * end for end in mixed.alpha_range.tolist()] for factor in RANGE_FACTORS)
    return [mixed.with_alpha_range(low, high) for low, high in ranges]


def _most_accurate(mixed: MixedClassifier, data: ImageData, target: float, robust: RobustAccuracy) -> MixedClassifier:
    """Return the view with the smallest setting that has the robust accuracy `target`.

    This is a bisection over the settings between which the clean accuracy changes.
    """
    settings, accuracy = accuracy_curve(mixed, data).steps()
    settings = settings[accuracy.argmax() :]  # smaller settings have less of both accuracies
    failing, enough = -1, len(settings) - 1
    if (best := robust(at_setting(mixed, settings[enough].item()))) < target:
        hint = f"its most robust setting has {best:.4g}; ask for at most that, or mix with another robust classifier"
        raise ValueError(f"expected a robust accuracy this mixture can reach, got {target:.4g}: {hint}")
    for _ in range(EVALUATIONS - 1):
        if enough - failing == 1:
            break
        middle = (failing + enough) // 2
        reached = robust(at_setting(mixed, settings[middle].item())) >= target
        failing, enough = (failing, middle) if reached else (middle, enough)
    return at_setting(mixed, settings[enough].item())
