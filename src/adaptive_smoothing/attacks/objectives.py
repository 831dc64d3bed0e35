"""What an attack climbs: `objective(model, images, labels, targets) -> (loss per image, logits)`.

An attack knows nothing of mixing or of training; everything it is after is in its objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adaptive_smoothing.attacks.losses import (
    Loss,
    cross_entropy_loss,
    dlr_loss,
    kl_divergence,
    logit_margin,
    margin_loss,
    targeted_dlr_loss,
    targeted_margin_loss,
    targeted_probability_loss,
    wanted,
)
from adaptive_smoothing.mixing.formula import mix_with_certain_standard

Objective = Callable[..., tuple[Tensor, Tensor]]


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
    """(1 - weight) loss + weight (-log alpha): fool a mixed classifier and push its alpha towards g (setting D).

    The weight is one number, or one per image.
    """

    loss: Loss
    weight: float | Tensor

    def __call__(
        self, model: Any, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixture = model.mix(images)
        pushed = -mixture.alpha.clamp_min(1e-12).log()
        loss = (1 - self.weight) * self.loss(mixture.logits, labels, targets) + self.weight * pushed
        return loss, mixture.logits


@dataclass(frozen=True)
class FlipStandard:
    """The loss of a mixed classifier, and the lead that the target has in g, until g is sure of it.

    A g that is sure of some other class hides from the gradient how easily it could be turned: its part of the mixture
    is flat there. A learned alpha that is close to 1 hides it as well; with `hostile` the loss is that of the mixture
    with a g that says the target already.
    """

    loss: Loss
    sure: float = 5.0
    hostile: bool = False

    def __call__(
        self, model: Any, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixture, target = model.mix(images), wanted(targets)
        at_setting = mix_with_certain_standard(mixture.h, mixture.alpha, target) if self.hostile else mixture.logits
        # How far the target is above the best of all other classes in g, and no further than g has to be sure.
        lead = -logit_margin(mixture.g, target).clamp(min=-self.sure)
        return self.loss(at_setting, labels, targets) + lead, mixture.logits


flip_standard = FlipStandard(targeted_probability_loss)
flip_standard_margin = FlipStandard(targeted_margin_loss)
worst_case_standard = FlipStandard(targeted_margin_loss, hostile=True)


@dataclass(frozen=True)
class KLDivergence:
    """KL(reference || model): how far the prediction has moved from the one on the clean image (TRADES)."""

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
