"""Signs that a robust accuracy is too high because attacks failed for other reasons than robustness.

Most broken defences masked gradients (Athalye et al. 2018; Carlini et al. 2019). A few images show the common symptoms:
no gradient or an incorrect one, randomness in the output, an attack that gains nothing from more steps or from a larger
radius. An alarm is not a proof. A plain network raises none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import OUTSIDE_HINT, describe_outside
from adaptive_smoothing.attacks.objectives import cross_entropy_loss, logit_margin, margin, margin_loss
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.gradient_probe import TINY_STEP, GradientProbe, gradient_of, share, share_zero
from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import check_eval, check_images, check_labels, check_not_probabilities
from adaptive_smoothing.models.inference import fp32_logits, full_precision
from adaptive_smoothing.threat import Linf, Threat, threat_title

# Difference of two passes over the same images, relative to the largest logit. Rounding explains about 1e-6.
RANDOM_OUTPUT = 1e-4
# Share of images whose gradient is exactly zero. A larger share is no coincidence.
ZERO_GRADIENT = 0.1
# Median logit margin. Standard CIFAR networks reach 15 to 25; from about 90 on the gradient of cross-entropy is zero.
SATURATED = 50.0
# Share of images that have to show a symptom.
MOST = 0.5
# Change of alpha between images. A smaller one is rounding.
SAME_ALPHA = 1e-6
# Numbers of steps that are compared, and images that are attacked. This check takes longer than all others together.
STEPS, ATTACKED = (1, 5, 25), 8
# Share of the gain that an attack with more steps must keep. It need not gain more: against a linear model one step is
# enough.
KEPT_GAIN = 0.9
# Steps of the attack without limits.
UNBOUNDED_STEPS = 30
# For each alarm: how the keys of its stages begin; the share of all images that these may fool after the gradient
# attacks have missed them; the observation. Surrogates may fool more, because they are needed wherever alpha saturates.
LATE_STAGES = {
    "fab-breaks": (("fab-t",), 0.002, "FAB, which looks for the nearest boundary, fooled the model on"),
    "square-breaks": (("square",), 0.002, "Square, which needs no gradient, fooled the model on"),
    "transfer-breaks": (("transfer",), 0.002, "attacks that were made on another model fooled this one on"),
    "surrogate-breaks": (("smooth", "plain"), 0.01, "attacks on a smoother mixture fooled this one on"),
}
# Late stages have to fool at least so many images.
FEW = 2

ADVICE = {
    "random-output": "fix the random numbers (ads.SmoothedClassifier does), or attack the average over many draws",
    "probabilities": "remove the final softmax, or return its logarithm, to keep the gradients",
    "saturated-logits": "divide the logits by a constant, or attack the margin or the DLR loss",
    "zero-gradient": "look for a detached, rounded or saturated part, and attack a differentiable surrogate of it",
    "flat-steps": "attack a smooth surrogate of the rounded or detached part, and add a black-box attack",
    "hidden-mixture": "evaluate the mixture itself, so that the attacks designed for mixtures are run as well",
    "detached-alpha": "let gradients flow through the mixer, or attack at both ends of alpha's range as well",
    "flat-alpha": "use --attack fast or adaptive, which also attack a mixture with a smooth alpha",
    "more-steps-do-not-help": "attack from many starts and without gradients: the gradients seem to be uninformative",
    "unbounded-attack": "the attack fails, the model is not robust: see the other alarms, then try a better attack",
    "fab-breaks": "the earlier losses are not enough: try others (for a mixture --attack adaptive, which flips g)",
    "square-breaks": "gradients are masked: find out where, and attack with more starts and a smooth surrogate",
    "surrogate-breaks": "the gradient of the model misses many examples: attack several different surrogates",
    "outside-threat": OUTSIDE_HINT,
    "easier-images": "check that the attack raises the loss: a targeted attack must not get the true labels as targets",
    "transfer-breaks": "the white-box attack is stuck: start it from the transferred images, or use more starts",
}


@dataclass(frozen=True)
class Alarm:
    """A sign that a robust accuracy is too high: its name, the observation in numbers, and what to try."""

    name: str
    observation: str
    advice: str

    def summary(self) -> dict[str, str]:
        """Return the entry of `result.json`."""
        return {"name": self.name, "saw": self.observation, "advice": self.advice}

    @classmethod
    def from_summary(cls, summary: Mapping[str, str]) -> Alarm:
        """Return the alarm of an entry of `result.json`."""
        return cls(summary["name"], summary["saw"], summary["advice"])


def check_model(model: nn.Module, images: Tensor, labels: Tensor, threat: Threat, *, seed: int = 0) -> list[Alarm]:
    """Return the alarms about a model. A dozen images are enough, if it classifies most of them correctly."""
    check_eval(model)
    check_images(images)
    check_labels(labels, images, getattr(model, "num_classes", None))
    with full_precision(), torch.autocast(images.device.type, enabled=False):
        probe = GradientProbe(model, images, labels, threat, seed)
        alarms = _raised(probe, hidden_mixture, random_output, probabilities)
        correct = (probe.logits.argmax(1) == labels).nonzero().squeeze(1)
        # The other checks compare outputs, and would measure nothing but the randomness.
        if not len(correct) or any(alarm.name == "random-output" for alarm in alarms):
            return alarms
        probe = probe.take(correct)
        alarms += _raised(probe, saturated_logits, zero_gradient, flat_steps, detached_alpha)
        if probe.gradient(margin_loss) is None:  # there is nothing that an attack could follow
            return alarms
        return alarms + _raised(probe, more_steps, unbounded)


def _raised(probe: GradientProbe, *checks: Callable[[GradientProbe], Alarm | None]) -> list[Alarm]:
    """Return the alarms of these checks, in order."""
    return [alarm for check in checks if (alarm := check(probe)) is not None]


def _alarm(name: str, observation: str) -> Alarm:
    return Alarm(name, observation, ADVICE[name])


def hidden_mixture(probe: GradientProbe) -> Alarm | None:
    """Check for a mixture inside another module, where attacks do not recognise it."""
    parts = [type(part).__name__ for part in probe.model.modules() if isinstance(part, BaseClassifiers)]
    if not parts or isinstance(probe.model, BaseClassifiers):
        return None
    return _alarm("hidden-mixture", f"the model is a {type(probe.model).__name__} with a {parts[0]} inside")


def random_output(probe: GradientProbe) -> Alarm | None:
    """Check for randomness: an attack that succeeds on one draw may fail on the next."""
    change = (fp32_logits(probe.model, probe.images) - probe.logits).abs().max()
    relative = (change / probe.logits.abs().max().clamp_min(1e-30)).item()
    found = f"two passes over the same images differ by {relative:.2g} of the largest logit"
    return _alarm("random-output", found) if relative > RANDOM_OUTPUT else None


def probabilities(probe: GradientProbe) -> Alarm | None:
    """Check for probabilities: the softmax in cross-entropy would be a second one, with hardly any gradient."""
    try:
        check_not_probabilities(probe.logits)
    except ValueError:
        return _alarm("probabilities", f"all {len(probe.logits)} rows of the output are non-negative and sum to 1")
    return None


def saturated_logits(probe: GradientProbe) -> Alarm | None:
    """Check for margins so large that cross-entropy and its gradient are zero in float32."""
    lead = (-logit_margin(probe.logits, probe.labels)).median().item()
    found = f"the correct logit leads by {lead:.3g} in the median, where cross-entropy vanishes in float32"
    return _alarm("saturated-logits", found) if lead > SATURATED else None


def zero_gradient(probe: GradientProbe) -> Alarm | None:
    """Check for images without a gradient, which no gradient attack can change."""
    gradients = {"the margin": probe.gradient(margin_loss), "cross-entropy": probe.gradient(cross_entropy_loss)}
    shares = {name: share_zero(gradient) for name, gradient in gradients.items()}
    if max(shares.values()) < ZERO_GRADIENT:
        return None
    found = " and ".join(f"that of {name} for {share:.0%}" for name, share in shares.items())
    missing = " (the output is not connected to the images)" if gradients["the margin"] is None else ""
    return _alarm("zero-gradient", f"the gradient is exactly zero: {found} of the images{missing}")


def flat_steps(probe: GradientProbe) -> Alarm | None:
    """Check for a step function, whose gradient is zero or was replaced by another one."""
    if (found := share(probe.flat())) > MOST:
        observation = f"a change by {TINY_STEP:g} changes nothing, one by eps does"
    elif (found := max(map(share, probe.incorrect_gradient()), default=0.0)) > MOST:
        observation = "autograd and finite differences disagree by half or more"
    else:
        return None
    return _alarm("flat-steps", f"for {found:.0%} of the images {observation}")


def detached_alpha(probe: GradientProbe) -> Alarm | None:
    """Check for an alpha that depends on the image but has no gradient: detached, or flat where it saturates."""
    if not isinstance(probe.model, MixedClassifier):
        return None
    change, gradient = probe.alpha_change(), _alpha_gradient(probe.model, probe.images)
    without = share_zero(gradient)
    if change < SAME_ALPHA or without <= MOST:
        return None
    observation = f"alpha varies by {change:.2g} with the image, but has no gradient for {without:.0%} of the images"
    flat = gradient is not None and share_zero(_alpha_gradient(probe.model.smooth(), probe.images)) <= MOST
    return _alarm("flat-alpha" if flat else "detached-alpha", observation)


def _alpha_gradient(mixed: MixedClassifier, images: Tensor) -> Tensor | None:
    return gradient_of(lambda images: mixed.mix(images).alpha, images)


def more_steps(probe: GradientProbe) -> Alarm | None:
    """Check that an attack raises the margin, and does not raise it less when it is given more steps."""
    correct = (logit_margin(probe.logits, probe.labels) < 0).nonzero().squeeze(1)[:ATTACKED]
    if not len(correct) or not (torch.as_tensor(probe.threat.eps) > 0).any():
        return None
    gains = [probe.gain(correct, steps) for steps in STEPS]
    if gains[-1] > probe.rounding() and all(later >= KEPT_GAIN * earlier for earlier, later in pairwise(gains)):
        return None
    found = ", ".join(f"{gain:.2g} with {steps}" for gain, steps in zip(gains, STEPS, strict=True))
    return _alarm("more-steps-do-not-help", f"an attack raises the median margin by {found} steps")


def unbounded(probe: GradientProbe) -> Alarm | None:
    """Check that an attack succeeds in a ball that contains every image, where a copy of another image is a success."""
    radius = 1.0 if isinstance(probe.threat, Linf) else math.sqrt(probe.images[0].numel())
    attack = PGD(
        probe.threat.with_eps(radius), UNBOUNDED_STEPS, objective=margin, stop_when_fooled=True, seed=probe.seed
    )
    left = torch.arange(len(probe.labels), device=probe.labels.device)
    for random_start in (False, True):
        left = left[probe.margins_after(replace(attack, random_start=random_start), left) <= 0]
        if not len(left):
            return None
    found = f"an attack without limits (eps = {radius:.3g}) does not fool {len(left)} of {len(probe.labels)} images"
    return _alarm("unbounded-attack", found)


def check_stages(stages: Sequence[str], fooled_by: np.ndarray, images: int) -> list[Alarm]:
    """Return the alarms about attacks that succeeded late.

    Args:
        stages: keys of the stages in order.
        fooled_by: number of the stage that fooled each correctly classified image, or -1.
        images: number of images in the run, or in its audit.
    """
    numbered, found = list(enumerate(stages)), []
    # Only stages after one that uses the gradient of the model itself are late.
    white_box = [number for number, stage in numbered if not stage.startswith(("square", "transfer"))]
    first = min(white_box, default=len(stages))
    for name, (prefixes, bound, observation) in LATE_STAGES.items():
        late = [number for number, stage in numbered if number > first and stage.startswith(prefixes)]
        count = int(np.isin(fooled_by, late).sum())
        if count >= FEW and count > bound * images:
            found.append(_alarm(name, f"{observation} {count} of {images} images that white-box attacks had missed"))
    return found


def check_outside(outside: int, attacked: int, threat: Threat | None) -> list[Alarm]:
    """Return the alarm about images of one attack that are outside the threat model; none without a threat."""
    if not outside or threat is None:
        return []
    return [_alarm("outside-threat", describe_outside(outside, attacked, threat))]


def check_robust_outside(outside: int, threat: Threat) -> list[Alarm]:
    """Return the alarm about images that no attack of a cascade fooled, and for which one left the threat model."""
    if not outside:
        return []
    images, have = ("image", "has") if outside == 1 else ("images", "have")
    where = f"farther than {threat_title(threat)} from the original or outside [0, 1]"
    observation = f"{outside} {images} that no attack fooled {have} an attacked version {where}"
    return [_alarm("outside-threat", observation)]


def check_easier(easier: int, attacked: int) -> list[Alarm]:
    """Return the alarm about a user's attack function that made most images easier (`is_easier`)."""
    if easier <= MOST * attacked:
        return []
    observation = f"an attack made the correct class more likely on {easier} of {attacked} images"
    return [_alarm("easier-images", observation)]
