"""Losses of logits that attacks maximise: `loss(logits, labels, targets)` returns one number per image.

Only targeted losses use `targets`. Every loss grows as the image gets closer to misclassification.
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
    """Return the largest logit of a wrong class minus that of the label: positive when the image is misclassified."""
    logits = logits.float()
    right = logits.gather(1, labels[:, None])
    wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return wrong - right.squeeze(1)


def kl_divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(reference) || softmax(logits)) of each row."""
    log_p, log_q = reference.float().log_softmax(1), logits.float().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def cross_entropy_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="none")


def margin_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    return logit_margin(logits, labels)


def targeted_margin_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """Return the logit of the target minus that of the label."""
    return _lead(logits.float(), labels, require_targets(targets))


def targeted_probability_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """Return the probability of the target minus that of the label.

    A mixed classifier adds up probabilities, so a base classifier that is certain of its class has no gradient here.
    """
    return _lead(logits.float().softmax(1), labels, require_targets(targets))


def dlr_loss(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    """Return the difference of logits ratio (Croce and Hein 2020): the margin over z_1 - z_3, which removes the scale.

    With fewer than four classes there is too little to divide by; then it is the margin.
    """
    if logits.shape[1] < DLR_CLASSES:
        return margin_loss(logits, labels)
    top = logits.float().topk(3).values
    return logit_margin(logits, labels) / (top[:, 0] - top[:, 2] + TINY)


def targeted_dlr_loss(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """Return the targeted margin over z_1 - (z_3 + z_4) / 2; with fewer than four classes the targeted margin."""
    if logits.shape[1] < DLR_CLASSES:
        return targeted_margin_loss(logits, labels, targets)
    logits = logits.float()
    top = logits.topk(4).values
    return _lead(logits, labels, require_targets(targets)) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def _lead(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return (scores.gather(1, targets[:, None]) - scores.gather(1, labels[:, None])).squeeze(1)


def require_targets(targets: Tensor | None) -> Tensor:
    """Return `targets`; None is an error."""
    if targets is None:
        raise ValueError("expected a target class per image for a targeted loss, got none: pass targets")
    return targets
