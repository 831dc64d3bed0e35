"""Losses of logits that an attack climbs: `loss(logits, labels, targets) -> one number per image`.

A targeted loss reads `targets`, the others do not. Each is positive, or larger, when the image is misclassified.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]

TINY = 1e-12
DLR_CLASSES = 4


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the best wrong class is above the right one: positive when the image is misclassified."""
    logits = logits.float()
    right = logits.gather(1, labels[:, None])
    wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return wrong - right.squeeze(1)


def kl_divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(reference) || softmax(logits)) of each row."""
    log_p, log_q = reference.float().log_softmax(1), logits.float().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def cross_entropy_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="none")


def margin_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    return logit_margin(logits, labels)


def targeted_margin_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """How far the target is above the right class."""
    return _lead(logits.float(), labels, wanted(targets))


def targeted_probability_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """The same lead in probabilities, which a mixed classifier adds up: a network that is sure has no say in it."""
    return _lead(logits.float().softmax(1), labels, wanted(targets))


def dlr_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020): the margin over z_1 - z_3, so that scale is nothing.

    Below four classes, where there is little to divide by, it is the margin.
    """
    if logits.shape[1] < DLR_CLASSES:
        return margin_loss(logits, labels)
    top = logits.float().topk(3).values
    return logit_margin(logits, labels) / (top[:, 0] - top[:, 2] + TINY)


def targeted_dlr_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """The target's lead over z_1 - (z_3 + z_4) / 2; below four classes the lead itself."""
    if logits.shape[1] < DLR_CLASSES:
        return targeted_margin_loss(logits, labels, targets)
    logits = logits.float()
    top = logits.topk(4).values
    return _lead(logits, labels, wanted(targets)) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def _lead(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return (logits.gather(1, targets[:, None]) - logits.gather(1, labels[:, None])).squeeze(1)


def wanted(targets: Tensor | None) -> Tensor:
    if targets is None:
        raise ValueError("expected a target class per image for a targeted loss, got none: pass targets")
    return targets
