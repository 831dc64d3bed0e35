"""The input of an attack, its outcome, and the confirmation of its successes in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.threat import Threat

# A float32 pixel that is moved by eps and back has a rounding error. That of an L2 norm is relative and grows with the
# number of pixels: some millionths for an ImageNet image.
PIXEL_ROUNDING, NORM_ROUNDING = 1e-6, 1e-5


@dataclass(frozen=True)
class AttackInput:
    """Images, with their indices in the data set and the worst versions that earlier attacks have found."""

    images: Tensor
    labels: Tensor
    index: Tensor
    logits: Tensor
    threat: Threat
    worst: Tensor | None = None

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
    """The result of an attack for each image: whether it is fooled, its worst version and margin, the queries made.

    The margin and the logits of a fooled image are those that confirmed it in full precision. For other images the
    margin is the one the attack computed, and the logits are unknown.
    """

    fooled: Tensor
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor

    @classmethod
    def before(cls, inputs: AttackInput) -> AttackOutcome:
        """Return the state before any attack."""
        none_fooled, no_queries = torch.zeros_like(inputs.labels, dtype=torch.bool), torch.zeros_like(inputs.labels)
        low = torch.full(inputs.labels.shape, -torch.inf, device=inputs.images.device)
        return cls(none_fooled, inputs.images.clone(), low, torch.zeros_like(inputs.logits), no_queries)


def confirm(
    model: nn.Module, adversarial: Tensor, images: Tensor, labels: Tensor, threat: Threat
) -> tuple[Tensor, Tensor]:
    """Return the margin of each image, positive if it fools the model, and its logits; -inf outside the ball."""
    if adversarial.isnan().any():
        raise NotFiniteError
    logits = fp32_logits_chunked(model, adversarial)
    margin = logit_margin(logits, labels)
    # Of two classes with equal logits the model predicts one; if it is not the label, the image is misclassified.
    margin = margin.where(logits.argmax(1) == labels, margin.clamp_min(torch.finfo(margin.dtype).tiny))
    eps = torch.as_tensor(threat.eps, device=images.device)
    inside = threat.distance(adversarial, images) <= eps * (1 + NORM_ROUNDING) + PIXEL_ROUNDING
    return margin.where(inside, -torch.inf), logits
