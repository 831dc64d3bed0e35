"""What an attack climbs: `objective(model, images, labels) -> (loss per image, logits)`.

An attack knows nothing of mixing or of training; everything it is after is in its objective.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropy(model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(images)
    return F.cross_entropy(logits.float(), labels, reduction="none"), logits


def margin(model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How far the best wrong class is above the right one: positive when the image is misclassified."""
    logits = model(images)
    return logit_margin(logits, labels), logits


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.float()
    right = logits.gather(1, labels[:, None])
    wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return wrong - right.squeeze(1)


@dataclass(frozen=True)
class KLDivergence:
    """KL(reference || model): how far the prediction has moved from the one on the clean image (TRADES)."""

    reference: Tensor

    def __call__(self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(images)
        if len(logits) != len(self.reference):
            raise ValueError(
                f"expected the {len(self.reference)} images of the reference, got {len(logits)}: "
                "leave stop_when_fooled off for this objective"
            )
        return kl_divergence(self.reference, logits), logits


def kl_divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(reference) || softmax(logits)) of each row."""
    log_p, log_q = reference.float().log_softmax(1), logits.float().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
