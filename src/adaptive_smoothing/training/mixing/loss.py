"""The composite loss of the paper, eq. comp_loss, with one more term."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.losses import cross_entropy_loss, logit_margin
from adaptive_smoothing.training.mixing.recipe import LossSettings


def composite_loss(c: LossSettings, logits: Tensor, alpha: Tensor, labels: Tensor, pseudo_labels: Tensor) -> Tensor:
    """Return c_CE l_CE + c_BCE l_BCE + c_prod l_CE l_BCE (eq. comp_loss) + c_error l_error for each image.

    Args:
        logits, alpha: output of the mixed classifier.
        pseudo_labels: the paper's labels of alpha: 1 where h should decide, 0 where g should.
    """
    l_ce = cross_entropy_loss(logits, labels)
    # A sigmoid that rounds to 0 or 1 has an infinite logarithm.
    l_bce = F.binary_cross_entropy(alpha.float().clamp(1e-6, 1 - 1e-6), pseudo_labels, reduction="none")
    l_error = torch.sigmoid(logit_margin(logits, labels))  # a smooth count of errors
    return c.ce * l_ce + c.bce * l_bce + c.product * l_ce * l_bce + c.error * l_error
