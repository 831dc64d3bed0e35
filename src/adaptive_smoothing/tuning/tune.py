"""The dial by its target: the setting of a mixture that gives a wanted accuracy.

A clean accuracy is met exactly, from one pass over validation images. Robust accuracies take attacks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import cast

from torch import nn

from adaptive_smoothing.attacks.autoattack import fast_attack
from adaptive_smoothing.attacks.cascade import Cascade, PlainAttack
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.tuning.clean_accuracy import check_share
from adaptive_smoothing.tuning.curves import accuracy_curve, at_setting, shared_alpha_curve

# Attacks on the data that a search for a robust accuracy may take.
EVALUATIONS = 7
# What is tried beside alpha, or beside the shift of a learned alpha: scales times these, time and again, and shares of
# alpha's freedom.
FACTORS, FREEDOMS = (0.5, 2.0), (0.5, 0.25)

Robust = Callable[[nn.Module], float]
Judged = tuple[float, MixedClassifier]
Scaled = Callable[[MixedClassifier, float], MixedClassifier]
Say = Callable[[str], None]


def tune(
    mixed: MixedClassifier,
    data: ImageData,
    *,
    clean_accuracy: float | None = None,
    robust_accuracy: float | None = None,
    threat: Threat | None = None,
    attack: Cascade | PlainAttack | None = None,
    attacked: int | None = None,
    say: Say = lambda text: None,
) -> MixedClassifier:
    """The view of `mixed` whose dial gives a wanted accuracy on `data`: alpha, or with a `Mixer` alpha_shift.

    - `clean_accuracy`: the most robust setting that has it, which one pass tells exactly.
    - `clean_accuracy` and a `threat`, or an `attack`: scales, and the range of a learned alpha, are tried as well, and
      the most robust mixture with that clean accuracy is returned. That takes five attacks, nine for a learned alpha,
      and another for each further step that gains.
    - `robust_accuracy` and a `threat`, or an `attack`: the most accurate setting found to keep it, by seven attacks.
      This rests on robustness that rises with the dial, as it does up to the noise of attacks.

    The attack is the preset `fast` against `threat`, or one of your own, on all images or on the first `attacked`. Give
    it validation images: what is tuned on the test set cannot be reported on it. `say` hears what each attack left, and
    what the clean accuracy is at the setting and at both ends of the dial (`say=print`).
    """
    wishes = {"clean_accuracy": clean_accuracy, "robust_accuracy": robust_accuracy, "threat": threat, "attack": attack}
    given = [name for name, wish in wishes.items() if wish is not None]
    wanted = [name for name in given if name.endswith("accuracy")]
    if len(wanted) != 1 or len(given) > 2 or given == ["robust_accuracy"]:
        raise ValueError(
            "expected a clean_accuracy, or a robust_accuracy with a threat or an attack, got "
            f"{' and '.join(given) or 'none of them'}: one dial serves one target; "
            "tune(mixed, data, clean_accuracy=0.9) or tune(mixed, data, robust_accuracy=0.4, threat=ads.Linf(8 / 255))"
        )
    if clean_accuracy is not None and len(given) == 1:
        return _with_clean_accuracy(mixed, data, clean_accuracy, say)
    robust = robust_accuracy_under(data.take(slice(attacked)), attack or cast(Threat, threat), say)
    if clean_accuracy is not None:
        return _most_robust(mixed, data, clean_accuracy, robust)
    assert robust_accuracy is not None
    check_share(robust_accuracy, "robust accuracy")
    return _smallest_robust(mixed, data, robust_accuracy, robust)


def robust_accuracy_under(
    data: ImageData, against: Threat | Cascade | PlainAttack, say: Say = lambda text: None
) -> Robust:
    """How many of these images a model is right on under an attack; against a threat that is the preset `fast`."""
    attack = replace(fast_attack(against), audit=()) if isinstance(against, Threat) else against
    options = EvaluationOptions(alarms=False)

    def robust(model: nn.Module) -> float:
        found = evaluate(model, data, attack, options=options)
        say(f"{100 * found.robust:.2f} % of {len(data):,} images stand at {model.extra_repr()}")
        return found.robust

    return robust


def _with_clean_accuracy(
    mixed: MixedClassifier, data: ImageData, target: float, say: Say = lambda text: None
) -> MixedClassifier:
    accuracy = accuracy_curve(mixed, data)
    setting = accuracy.largest(target)
    say(accuracy.told(setting))
    if setting == accuracy.span[1] and accuracy(setting) - target > 1 / len(data):
        warnings.warn(
            f"{100 * target:.4g} % clean accuracy was asked for, and there are {100 * accuracy(setting):.2f} % even at "
            f"the most robust end of the dial",
            stacklevel=3,
        )
    return at_setting(mixed, setting)


def _most_robust(mixed: MixedClassifier, data: ImageData, target: float, robust: Robust) -> MixedClassifier:
    """One number after the other: each is taken as it serves best with those before it."""

    def judged(view: MixedClassifier) -> Judged:
        """With its dial at the clean accuracy; less than nothing stands of one that does not reach it."""
        accuracy = accuracy_curve(view, data)
        if not len(accuracy.reaching(target)):
            return -1.0, view
        view = at_setting(view, accuracy.largest(target))
        return robust(view), view

    start = _with_clean_accuracy(mixed, data, target)
    best = robust(start), start
    for scaled in (_score_scaled, *LOGITS_SCALED) if mixed.learns_alpha else LOGITS_SCALED:
        best = _climbed(best, scaled, judged)
    others = _kept_close(best[1], data, target) if mixed.learns_alpha else ()
    return max([best, *map(judged, others)], key=itemgetter(0))[1]


def _climbed(best: Judged, scaled: Scaled, judged: Callable[[MixedClassifier], Judged]) -> Judged:
    """A step to each side, and on to the side that gains for as long as it does."""
    for found, factor in [(judged(scaled(best[1], factor)), factor) for factor in FACTORS]:
        while found[0] > best[0]:
            best, found = found, judged(scaled(found[1], factor))
    return best


def _standard_scaled(mixed: MixedClassifier, factor: float) -> MixedClassifier:
    return mixed.with_scales(factor * mixed.standard_scale, mixed.robust_scale)


def _robust_scaled(mixed: MixedClassifier, factor: float) -> MixedClassifier:
    return mixed.with_scales(mixed.standard_scale, factor * mixed.robust_scale)


def _score_scaled(mixed: MixedClassifier, factor: float) -> MixedClassifier:
    return mixed.with_sigmoid(factor * mixed.alpha_scale, mixed.alpha_shift)


LOGITS_SCALED: tuple[Scaled, ...] = (_standard_scaled, _robust_scaled)


def _kept_close(mixed: MixedClassifier, data: ImageData, target: float) -> list[MixedClassifier]:
    """The range drawn together towards the one alpha that would do for all images, if there is one."""
    accuracy = shared_alpha_curve(mixed, data)
    if not len(accuracy.reaching(target)):
        return []
    alpha = accuracy.largest(target)
    ranges = ([(1 - freedom) * alpha + freedom * end for end in mixed.alpha_range.tolist()] for freedom in FREEDOMS)
    return [mixed.with_alpha_range(low, high) for low, high in ranges]


def _smallest_robust(mixed: MixedClassifier, data: ImageData, target: float, robust: Robust) -> MixedClassifier:
    """By bisection over the steps of clean accuracy, from its largest on: between two of them there is nothing to win,
    and below the first one neither accuracy is better.
    """
    settings, accuracy = accuracy_curve(mixed, data).steps()
    settings = settings[accuracy.argmax() :]
    failing, enough = -1, len(settings) - 1
    if (best := robust(at_setting(mixed, settings[enough].item()))) < target:
        raise ValueError(
            f"expected a robust accuracy this mixture can reach, got {target:.4g}: at its most robust end it has "
            f"{best:.4g}; ask for at most that, or mix with another robust classifier"
        )
    for _ in range(EVALUATIONS - 1):
        if enough - failing == 1:
            break
        middle = (failing + enough) // 2
        stands = robust(at_setting(mixed, settings[middle].item())) >= target
        failing, enough = (failing, middle) if stands else (middle, enough)
    return at_setting(mixed, settings[enough].item())
