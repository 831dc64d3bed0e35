"""The composite loss of the paper, eq. comp_loss, with one term more."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.losses import cross_entropy_loss, logit_margin
from adaptive_smoothing.training.mixing.recipe import LossSettings


def composite_loss(settings: LossSettings, logits: Tensor, alpha: Tensor, labels: Tensor, pseudo: Tensor) -> Tensor:
    """One number per image, from the mixture's logits, its alpha, the labels and the pseudo labels: 1 where h should
    be trusted, 0 where g should.
    """
    cross = cross_entropy_loss(logits, labels)
    # A sigmoid that is 1 to the last bit has no logarithm of its rest.
    trusted = alpha.float().clamp(1e-6, 1 - 1e-6)
    binary = F.binary_cross_entropy(trusted, pseudo, reduction="none")
    error = torch.sigmoid(logit_margin(logits, labels))
    return settings.ce * cross + settings.bce * binary + settings.product * cross * binary + settings.error * error
