"""Signs that a robust accuracy cannot be trusted: a model on which attacks fail for reasons other than robustness.

Most broken defences broke attacks, not adversarial examples (Athalye et al. 2018; Carlini et al. 2019). What they have
in common can be seen on a few images: no gradient, a wrong one, chance in the output, an attack that gains nothing
from more steps or from a larger radius. An alarm is no proof; a plain network raises none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.losses import cross_entropy_loss, logit_margin, margin_loss
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.gradient_probe import TINY_STEP, Sample, gradient_of, share, share_zero
from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import check_eval, check_images, check_labels, check_not_probabilities
from adaptive_smoothing.models.inference import fp32_logits, full_precision
from adaptive_smoothing.threat import Linf, Threat

# Two passes of the same images may differ by rounding, 1e-6 or so of the largest logit.
CHANCE = 1e-4
# A gradient that is zero to the last bit is no accident when a tenth of the images have one.
WITHOUT_GRADIENT = 0.1
# Standard CIFAR networks reach logit margins of 15 to 25; from about 90 on the gradient of cross-entropy is zero.
SATURATED = 50.0
MOST = 0.5
SAME_ALPHA = 1e-6
# The climbs that are compared, and how many images they are made on: they cost more than all other checks together.
STEPS, CLIMBERS = (1, 10, 50), 8
# One step is enough against a linear model, so that more steps need not gain; they must not lose.
KEPT = 0.9
UNBOUNDED_STEPS = 30
# Share of all images above which a late stage has found what the gradient attacks before it should have.
LATE = 0.002
# The same for attacks on a smoother view of the mixture: some are needed wherever alpha is a switch.
MISSED = 0.01
# One image may fall to anything.
FEW = 2

ADVICE = {
    "random-output": "fix the random numbers (ads.SmoothedClassifier does), or attack the average over many draws",
    "probabilities": "remove the final softmax or return its logarithm, so that gradients survive",
    "saturated-logits": "divide the logits by a constant, or attack the margin or the DLR loss",
    "zero-gradient": "look for a detached, rounded or saturated part, and attack a differentiable stand-in for it",
    "flat-steps": "attack a smooth stand-in for the rounded or detached part, and add a black-box attack",
    "hidden-mixture": "evaluate the mixture itself, so that the attacks that are made for mixtures are tried, too",
    "detached-alpha": "let gradients flow through the mixing network, or attack at both ends of alpha's range as well",
    "flat-alpha": "attack past it as well: --preset fast or adaptive have attacks that follow its score",
    "more-steps-do-not-help": "attack from many starts and without gradients: these seem to point nowhere",
    "unbounded-attack": "the attack is blind, not the model robust: look at the other alarms, then for a better attack",
    "fab-breaks": "the losses before it do not lead there: try others (for a mixture --preset adaptive, which turns g)",
    "square-breaks": "the gradients are masked: find where, and attack with more starts and a smooth stand-in",
    "surrogate-breaks": "the model's own gradient misses much: trust what many different stand-ins leave, and try more",
    "transfer-breaks": "the white-box attack is stuck: start it from the transferred images, or give it more starts",
}


@dataclass(frozen=True)
class Alarm:
    """A short name, what was seen in numbers, and what to try."""

    name: str
    saw: str
    advice: str


def _alarm(name: str, saw: str) -> Alarm:
    return Alarm(name, saw, ADVICE[name])


def probe(model: nn.Module, images: Tensor, labels: Tensor, threat: Threat, *, seed: int = 0) -> list[Alarm]:
    """What is suspicious about a model, from about 32 images of which it gets most right."""
    check_eval(model)
    check_images(images)
    check_labels(labels, images, getattr(model, "num_classes", None))
    with full_precision(), torch.autocast(images.device.type, enabled=False):
        sample = Sample(model, images, labels, fp32_logits(model, images), threat, seed)
        alarms = _raised(sample, hidden_mixture, random_output, probabilities)
        right = (sample.logits.argmax(1) == labels).nonzero().squeeze(1)
        # What follows compares outputs of images that are right: chance would be all that it measured.
        if not len(right) or any(alarm.name == "random-output" for alarm in alarms):
            return alarms
        # Logits again, as in a batch of another size they may differ in the last bit.
        kept = images[right], labels[right], fp32_logits(model, images[right]), threat.take(right)
        return alarms + _probe_right(Sample(model, *kept, seed))


def _probe_right(sample: Sample) -> list[Alarm]:
    alarms = _raised(sample, saturated_logits, zero_gradient, flat_steps, detached_alpha)
    if sample.gradient(margin_loss) is None:  # no attack can so much as begin
        return alarms
    return alarms + more_steps(sample.model, sample.images, sample.labels, sample.threat) + _raised(sample, unbounded)


def _raised(sample: Sample, *checks: Callable[[Sample], Alarm | None]) -> list[Alarm]:
    return [alarm for check in checks if (alarm := check(sample)) is not None]


# --- the model ----------------------------------------------------------------------------------------


def hidden_mixture(sample: Sample) -> Alarm | None:
    """Attacks see that a model is a mixture when it is one, not when it has one inside."""
    parts = [type(part).__name__ for part in sample.model.modules() if isinstance(part, BaseClassifiers)]
    if not parts or isinstance(sample.model, BaseClassifiers):
        return None
    return _alarm("hidden-mixture", f"the model is a {type(sample.model).__name__} with a {parts[0]} inside")


# --- the output ---------------------------------------------------------------------------------------


def random_output(sample: Sample) -> Alarm | None:
    """An attack that succeeds on one draw may fail on the next, and the other way round."""
    change = (fp32_logits(sample.model, sample.images) - sample.logits).abs().max()
    share = (change / sample.logits.abs().max().clamp_min(1e-30)).item()
    if share <= CHANCE:
        return None
    return _alarm("random-output", f"two passes over the same images differ by {share:.2g} of the largest logit")


def probabilities(sample: Sample) -> Alarm | None:
    """A second softmax, that of cross-entropy, leaves next to no gradient of them."""
    try:
        check_not_probabilities(sample.logits)
    except ValueError:
        return _alarm("probabilities", f"all {len(sample.logits)} rows of the output are non-negative and sum to 1")
    return None


def saturated_logits(sample: Sample) -> Alarm | None:
    """Where the right class is certain to the last bit, cross-entropy has nothing to climb."""
    lead = (-logit_margin(sample.logits, sample.labels)).median().item()
    if lead <= SATURATED:
        return None
    saw = f"the right logit leads by {lead:.3g} in the median, where cross-entropy and its gradient vanish in float32"
    return _alarm("saturated-logits", saw)


# --- the gradient -------------------------------------------------------------------------------------


def zero_gradient(sample: Sample) -> Alarm | None:
    """An attack cannot move such images, which is no robustness."""
    gradients = {"the margin": sample.gradient(margin_loss), "cross-entropy": sample.gradient(cross_entropy_loss)}
    shares = {name: share_zero(gradient) for name, gradient in gradients.items()}
    if max(shares.values()) < WITHOUT_GRADIENT:
        return None
    saw = " and ".join(f"that of {name} for {share:.0%}" for name, share in shares.items())
    missing = " (the output is not connected to the images)" if gradients["the margin"] is None else ""
    return _alarm("zero-gradient", f"the gradient is exactly zero: {saw} of the images{missing}")


def flat_steps(sample: Sample) -> Alarm | None:
    """A staircase has a gradient of zero, or one that somebody made up for it."""
    if (flat := share(sample.flat())) > MOST:
        saw = f"for {flat:.0%} of the images a change by {TINY_STEP:g} changes nothing, one by eps does"
        return _alarm("flat-steps", saw)
    if (wrong := max(map(share, sample.wrong_gradient()), default=0.0)) > MOST:
        saw = f"for {wrong:.0%} of the images autograd and finite differences disagree by half or more"
        return _alarm("flat-steps", saw)
    return None


def detached_alpha(sample: Sample) -> Alarm | None:
    """An attack that does not see alpha move attacks another mixture."""
    if not isinstance(sample.model, MixedClassifier):
        return None
    moves, slopes = sample.alpha_moves(), _alpha_slopes(sample.model, sample.images)
    without = share_zero(slopes)
    if moves < SAME_ALPHA or without <= MOST:
        return None
    saw = f"alpha varies by {moves:.2g} with the image, but has no gradient for {without:.0%} of the images"
    # Saturated, which an attacker can look past, or cut off.
    flat = slopes is not None and share_zero(_alpha_slopes(sample.model.smooth(), sample.images)) <= MOST
    return _alarm("flat-alpha" if flat else "detached-alpha", saw)


def _alpha_slopes(mixed: MixedClassifier, images: Tensor) -> Tensor | None:
    return gradient_of(lambda images: mixed.mix(images).alpha, images)


# --- the attack ---------------------------------------------------------------------------------------


def more_steps(model: nn.Module, images: Tensor, labels: Tensor, threat: Threat) -> list[Alarm]:
    """The margin must not fall when an attack is given more steps, nor stay where it was without an attack."""
    sample = Sample(model, images, labels, fp32_logits(model, images), threat)
    right = (logit_margin(sample.logits, labels) < 0).nonzero().squeeze(1)[:CLIMBERS]
    if not len(right) or not (torch.as_tensor(threat.eps) > 0).any():
        return []
    gains = [sample.gain(right, steps) for steps in STEPS]
    if gains[-1] > sample.rounding() and all(later >= KEPT * earlier for earlier, later in pairwise(gains)):
        return []
    found = ", ".join(f"{gain:.2g} with {steps}" for gain, steps in zip(gains, STEPS, strict=True))
    return [_alarm("more-steps-do-not-help", f"an attack raises the median margin by {found} steps")]


def unbounded(sample: Sample) -> Alarm | None:
    """A radius that holds every image holds wrongly classified ones: a copy of another image would do."""
    radius = 1.0 if isinstance(sample.threat, Linf) else math.sqrt(sample.images[0].numel())
    attack = PGD(sample.threat.with_eps(radius), UNBOUNDED_STEPS, stop_when_fooled=True, seed=sample.seed)
    left = torch.arange(len(sample.labels), device=sample.labels.device)
    for random_start in (False, True):
        left = left[sample.margins_after(replace(attack, random_start=random_start), left) <= 0]
        if not len(left):
            return None
    saw = f"an attack without limits (eps = {radius:.3g}) leaves {len(left)} of {len(sample.labels)} images right"
    return _alarm("unbounded-attack", saw)


# --- a finished evaluation ----------------------------------------------------------------------------


def after(stages: Sequence[str], fooled_by: np.ndarray, images: int) -> list[Alarm]:
    """What the order in which attacks succeeded says: `fooled_by` is the stage of each right image, or -1."""
    late = {
        "fab-breaks": (("fab-t",), LATE, "FAB, which looks for the nearest boundary, fooled the model on"),
        "square-breaks": (("square",), LATE, "Square, which needs no gradient, fooled the model on"),
        "transfer-breaks": (("transfer",), LATE, "attacks that were made on another model fooled this one on"),
        "surrogate-breaks": (("smooth", "plain"), MISSED, "attacks on a smoother mixture fooled this one on"),
    }
    found = {name: (_found_late(stages, fooled_by, kind), bound, saw) for name, (kind, bound, saw) in late.items()}
    return [
        _alarm(name, f"{saw} {count} of {images} images that white-box attacks had left")
        for name, (count, bound, saw) in found.items()
        if count >= FEW and count > bound * images
    ]


def _found_late(stages: Sequence[str], fooled_by: np.ndarray, kind: tuple[str, ...]) -> int:
    """How many images stages of this kind fooled after a stage with gradients of the model itself."""
    numbered = list(enumerate(stages))
    white_box = [number for number, stage in numbered if not stage.startswith(("square", "transfer"))]
    late = [number for number, stage in numbered if stage.startswith(kind) and number > min([*white_box, number])]
    return int(np.isin(fooled_by, late).sum())
