"""What an attack gets, what it returns, and the confirmation of its successes in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.threat import Threat

# How far outside the ball an image may be because of rounding. The error of one float32 pixel is absolute. That of an
# L2 norm is relative and grows with the number of pixels, to some millionths for an ImageNet image.
PIXEL_ROUNDING, NORM_ROUNDING = 1e-6, 1e-5


@dataclass(frozen=True)
class AttackInput:
    """The images to attack, and what is known about them."""

    images: Tensor
    labels: Tensor
    index: Tensor  # positions in the data set, from which random numbers are derived
    logits: Tensor  # of the clean images, in full precision
    threat: Threat
    worst: Tensor | None = None  # the worst versions that earlier attacks have found

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def eps(self) -> Tensor:
        """One radius per image."""
        return torch.as_tensor(self.threat.eps, dtype=torch.float32, device=self.images.device).expand(len(self))

    def take(self, which: Tensor) -> AttackInput:
        """Return the input of a selection of the images."""
        images, labels, index, logits = (part[which] for part in (self.images, self.labels, self.index, self.logits))
        worst = None if self.worst is None else self.worst[which]
        return AttackInput(images, labels, index, logits, self.threat.take(which), worst)


@dataclass
class AttackOutcome:
    """The result of an attack for each image: whether it fools the model, its worst version, the queries made.

    The margin and the logits of a fooled image are those that confirmed it in full precision. For other images the
    margin is the one the attack computed, and the logits have no meaning.
    """

    fooled: Tensor
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor

    @classmethod
    def before(cls, inputs: AttackInput) -> AttackOutcome:
        """Return the outcome before the first query: no image is fooled, and every margin is -inf."""
        none_fooled, no_queries = torch.zeros_like(inputs.labels, dtype=torch.bool), torch.zeros_like(inputs.labels)
        low = torch.full(inputs.labels.shape, -torch.inf, device=inputs.images.device)
        return cls(none_fooled, inputs.images.clone(), low, torch.zeros_like(inputs.logits), no_queries)


def confirm(
    model: nn.Module, adversarial: Tensor, images: Tensor, labels: Tensor, threat: Threat
) -> tuple[Tensor, Tensor]:
    """Return the margins and the logits in full precision; a margin is positive if the image fools the model.

    Outside the ball the margin is -inf.
    """
    if adversarial.isnan().any():
        raise NotFiniteError
    logits = fp32_logits_chunked(model, adversarial)
    margin = logit_margin(logits, labels)
    # Where the label ties with another class, the prediction may be the other one, although the margin is 0.
    margin = margin.where(logits.argmax(1) == labels, margin.clamp_min(torch.finfo(margin.dtype).tiny))
    return margin.where(inside_ball(adversarial, images, threat), -torch.inf), logits


def inside_ball(adversarial: Tensor, images: Tensor, threat: Threat) -> Tensor:
    """Return whether each perturbation has norm at most eps, up to rounding."""
    eps = torch.as_tensor(threat.eps, device=images.device)
    return threat.distance(adversarial, images) <= eps * (1 + NORM_ROUNDING) + PIXEL_ROUNDING
