"""Losses of logits, and the objectives that attacks maximise.

An objective is a function `objective(model, images, labels, targets)` that returns (loss per image, logits). Whatever
an attack knows about mixing or training is in its objective. `cross_entropy`, `margin` and `dlr` suit any untargeted
attack, as in `PGD(threat, objective=margin)`; those whose name begins with `targeted` need an attack with targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import mix_with_certain_standard

Model = Callable[[Tensor], Tensor]
# One class per image; None for an untargeted attack.
Targets = Tensor | None
Loss = Callable[[Tensor, Tensor, Targets], Tensor]
LossLogits = tuple[Tensor, Tensor]  # the loss of each image, and the logits
Objective = Callable[..., LossLogits]

# Keeps denominators and the arguments of logarithms above zero.
TINY = 1e-12
# The targeted DLR uses the four largest logits. With fewer classes, both DLR losses are the margin.
DLR_CLASSES = 4


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest logit of an incorrect class minus that of the label: positive for a misclassified image."""
    logits = logits.float()
    wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return wrong - logits.gather(1, labels[:, None]).squeeze(1)


def kl_divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(reference) || softmax(logits)) of each row."""
    log_p, log_q = reference.float().log_softmax(1), logits.float().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def cross_entropy_loss(logits: Tensor, labels: Tensor, targets: Targets = None) -> Tensor:
    """Return the cross-entropy of each image."""
    return F.cross_entropy(logits.float(), labels, reduction="none")


def margin_loss(logits: Tensor, labels: Tensor, targets: Targets = None) -> Tensor:
    """Return `logit_margin`, with the signature of a loss."""
    return logit_margin(logits, labels)


def probability_margin_loss(logits: Tensor, labels: Tensor, targets: Targets = None) -> Tensor:
    """Return the largest probability of an incorrect class minus that of the label."""
    return logit_margin(logits.float().softmax(1), labels)


def targeted_margin_loss(logits: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the logit of the target minus that of the label."""
    return _lead(logits.float(), labels, targets)


def targeted_probability_loss(logits: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the probability of the target minus that of the label.

    A mixed classifier adds up probabilities, so a base classifier that is certain of its class has no gradient here.
    """
    return _lead(logits.float().softmax(1), labels, targets)


def dlr_loss(logits: Tensor, labels: Tensor, targets: Targets = None) -> Tensor:
    """Return the difference of logits ratio (Croce and Hein 2020): the margin divided by z_1 - z_3."""
    if logits.shape[1] < DLR_CLASSES:
        return margin_loss(logits, labels)
    top = logits.float().topk(3).values
    return logit_margin(logits, labels) / (top[:, 0] - top[:, 2] + TINY)


def targeted_dlr_loss(logits: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the targeted margin divided by z_1 - (z_3 + z_4) / 2."""
    if logits.shape[1] < DLR_CLASSES:
        return targeted_margin_loss(logits, labels, targets)
    logits = logits.float()
    top = logits.topk(4).values
    return _lead(logits, labels, targets) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def _lead(scores: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the score of the target minus that of the label."""
    return (scores.gather(1, require_targets(targets)[:, None]) - scores.gather(1, labels[:, None])).squeeze(1)


def require_targets(targets: Targets) -> Tensor:
    """Return `targets`, or raise an error if there are none."""
    if targets is None:
        raise ValueError("expected a target class per image for a targeted loss, got none: pass targets")
    return targets


@dataclass(frozen=True)
class LossObjective:
    """A loss of the model's logits."""

    loss: Loss

    def __call__(self, model: Model, images: Tensor, labels: Tensor, targets: Targets = None) -> LossLogits:
        logits = model(images)
        return self.loss(logits, labels, targets), logits


cross_entropy = LossObjective(cross_entropy_loss)
margin = LossObjective(margin_loss)
probability_margin = LossObjective(probability_margin_loss)
dlr = LossObjective(dlr_loss)
targeted_margin = LossObjective(targeted_margin_loss)
targeted_probability = LossObjective(targeted_probability_loss)
targeted_dlr = LossObjective(targeted_dlr_loss)


@dataclass(frozen=True)
class LowerAlpha:
    """The sum (1 - weight) loss - weight log(alpha), which also lowers alpha (the paper's setting D)."""

    loss: Loss
    weight: float | Tensor  # one number, or one per image

    def __call__(self, model: MixedClassifier, images: Tensor, labels: Tensor, targets: Targets = None) -> LossLogits:
        mixed = model.mix(images)
        lowered = -mixed.alpha.clamp_min(TINY).log()
        return (1 - self.weight) * self.loss(mixed.logits, labels, targets) + self.weight * lowered, mixed.logits


@dataclass(frozen=True)
class FlipStandard:
    """The loss of a mixed classifier plus the margin of the target in g, up to `max_lead`.

    Where g is certain of another class, its share of the mixture has no gradient, although g can be flipped easily. The
    same holds where a learned alpha is close to 1. With `worst_case`, the loss is computed as if g were already certain
    of the target.
    """

    loss: Loss
    max_lead: float = 5.0
    worst_case: bool = False

    def __call__(self, model: MixedClassifier, images: Tensor, labels: Tensor, targets: Targets = None) -> LossLogits:
        mixed, target = model.mix(images), require_targets(targets)
        logits = mix_with_certain_standard(mixed.h, mixed.alpha, target) if self.worst_case else mixed.logits
        lead = (-logit_margin(mixed.g, target)).clamp(max=self.max_lead)
        return self.loss(logits, labels, targets) + lead, mixed.logits


flip_standard = FlipStandard(targeted_probability_loss)
flip_standard_margin = FlipStandard(targeted_margin_loss)
worst_case_standard = FlipStandard(targeted_margin_loss, worst_case=True)


@dataclass(frozen=True)
class KLDivergence:
    """KL(reference || model), where `reference` holds the logits of the clean images (TRADES)."""

    reference: Tensor

    def __call__(self, model: Model, images: Tensor, labels: Tensor, targets: Targets = None) -> LossLogits:
        logits = model(images)
        if len(logits) != len(self.reference):
            hint = "leave stop_when_fooled off for this objective"
            raise ValueError(f"expected the {len(self.reference)} images of the reference, got {len(logits)}: {hint}")
        return kl_divergence(self.reference, logits), logits


def loss_and_gradient(
    objective: Objective, model: Model, images: Tensor, *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each image, the logits, and the gradient of the loss with respect to the images.

    The gradient is zero if the loss does not depend on the images. `classes` are the labels and, if any, the targets.
    """
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        loss, logits = objective(model, images, *classes)
        gradient = torch.autograd.grad(loss.sum(), images, allow_unused=True)[0] if loss.requires_grad else None
    return loss.detach(), logits.detach(), torch.zeros_like(images) if gradient is None else gradient
