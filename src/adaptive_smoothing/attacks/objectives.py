"""What an attack maximises: `objective(model, images, labels, targets)` returns (loss per image, logits).

Attacks know nothing about mixing or training. All such knowledge is in the objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adaptive_smoothing.attacks.losses import (
    Loss,
    cross_entropy_loss,
    dlr_loss,
    kl_divergence,
    logit_margin,
    margin_loss,
    require_targets,
    targeted_dlr_loss,
    targeted_margin_loss,
    targeted_probability_loss,
)
from adaptive_smoothing.mixing.classifier import MixedOutput
from adaptive_smoothing.mixing.formula import mix_with_certain_standard

Objective = Callable[..., tuple[Tensor, Tensor]]


class Mixes(Protocol):
    """A mixed classifier, in any arithmetic."""

    def mix(self, images: Tensor) -> MixedOutput: ...


@dataclass(frozen=True)
class LossObjective:
    """A loss of the model's logits."""

    loss: Loss

    def __call__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return self.loss(logits, labels, targets), logits


cross_entropy, margin, dlr = LossObjective(cross_entropy_loss), LossObjective(margin_loss), LossObjective(dlr_loss)
targeted_margin, targeted_dlr = LossObjective(targeted_margin_loss), LossObjective(targeted_dlr_loss)
targeted_probability = LossObjective(targeted_probability_loss)


@dataclass(frozen=True)
class LowerAlpha:
    """(1 - weight) loss + weight (-log alpha): fool a mixed classifier and lower its alpha (the paper's setting D).

    `weight` is one number, or one per image.
    """

    loss: Loss
    weight: float | Tensor

    def __call__(
        self, model: Mixes, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixed = model.mix(images)
        lowered = -mixed.alpha.clamp_min(1e-12).log()
        loss = (1 - self.weight) * self.loss(mixed.logits, labels, targets) + self.weight * lowered
        return loss, mixed.logits


@dataclass(frozen=True)
class FlipStandard:
    """The loss of a mixed classifier plus the margin of the target in g, up to `max_lead`.

    Where g is certain of another class, its share of the mixture has no gradient, although g can be flipped easily. The
    same holds where a learned alpha is close to 1. With `worst_case`, the loss is that of the mixture with a g that is
    already certain of the target.
    """

    loss: Loss
    max_lead: float = 5.0
    worst_case: bool = False

    def __call__(
        self, model: Mixes, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixed, target = model.mix(images), require_targets(targets)
        logits = mix_with_certain_standard(mixed.h, mixed.alpha, target) if self.worst_case else mixed.logits
        lead = -logit_margin(mixed.g, target).clamp(min=-self.max_lead)
        return self.loss(logits, labels, targets) + lead, mixed.logits


flip_standard = FlipStandard(targeted_probability_loss)
flip_standard_margin = FlipStandard(targeted_margin_loss)
worst_case_standard = FlipStandard(targeted_margin_loss, worst_case=True)


@dataclass(frozen=True)
class KLDivergence:
    """KL(reference || model), with the reference logits of the clean images (TRADES)."""

    reference: Tensor

    def __call__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = model(images)
        if len(logits) != len(self.reference):
            raise ValueError(
                f"expected the {len(self.reference)} images of the reference, got {len(logits)}: "
                "leave stop_when_fooled off for this objective"
            )
        return kl_divergence(self.reference, logits), logits
