"""The loss of a mixer: the paper's composite loss, and the weight of attacked images relative to clean ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.objectives import cross_entropy_loss, logit_margin
from adaptive_smoothing.training.mixing.recipe import LossSettings

# Limits of the weight of attacked images relative to clean ones, and the rate of the moving average of the slopes.
WEIGHT_LIMITS, SLOPE_RATE = (0.05, 2.0), 0.05


def composite_loss(c: LossSettings, logits: Tensor, alpha: Tensor, labels: Tensor, pseudo_labels: Tensor) -> Tensor:
    """Return c_CE l_CE + c_BCE l_BCE + c_prod l_CE l_BCE (eq. comp_loss) + c_error l_error for each image.

    `pseudo_labels` are the paper's labels of alpha: 1 where h should decide, 0 where g should.
    """
    l_ce = cross_entropy_loss(logits, labels)
    # A sigmoid that rounds to 0 or 1 has an infinite logarithm.
    l_bce = F.binary_cross_entropy(alpha.float().clamp(1e-6, 1 - 1e-6), pseudo_labels, reduction="none")
    l_error = torch.sigmoid(logit_margin(logits, labels))  # a smooth count of errors
    return c.ce * l_ce + c.bce * l_bce + c.product * l_ce * l_bce + c.error * l_error


class AttackedWeight:
    """The weight of attacked images, relative to clean ones, for which the loss does not change with alpha_shift.

    The operating point sets alpha_shift. A loss that prefers another shift would move all scores towards it, and the
    operating point would move alpha_shift back, without end.
    """

    def __init__(self, device: torch.device) -> None:
        # Moving averages of the derivatives by alpha_shift of the loss of clean and of attacked images.
        self.slopes = torch.zeros(2, device=device)

    def __call__(self, losses: Tensor, alpha: Tensor, alpha_range: Tensor) -> Tensor:
        """Return the weight, from the losses and alphas of clean images followed by those of as many attacked ones."""
        (slopes,) = torch.autograd.grad(losses.sum(), alpha, retain_graph=True)
        low, high = alpha_range
        # The derivative of alpha by the shift is that of a sigmoid.
        by_shift = slopes * (alpha.detach() - low) * (high - alpha.detach()) / (high - low)
        found = torch.stack([half.mean() for half in by_shift.chunk(2)])
        self.slopes.copy_(torch.where(self.slopes == 0, found, torch.lerp(self.slopes, found, SLOPE_RATE)))
        # A larger alpha raises the loss of clean images and lowers that of attacked ones, except by chance early on.
        clean, attacked = self.slopes
        return (clean.clamp_min(0) / (-attacked).clamp_min(1e-12)).clamp(*WEIGHT_LIMITS)
