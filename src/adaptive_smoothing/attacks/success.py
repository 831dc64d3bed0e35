"""Confirm in full precision that an adversarial image is inside the ball and fools the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.threat import Threat

# A pixel of 1 moved by eps and back is off by a rounding error of float32, and a length by a share of itself that
# grows with the number of pixels: some millionths for those of ImageNet.
ROUNDING, OF_LENGTH = 1e-6, 1e-5


def confirm(
    model: nn.Module, adversarial: Tensor, images: Tensor, labels: Tensor, threat: Threat
) -> tuple[Tensor, Tensor]:
    """By how much each image fools the model, and its logits. An image outside the ball fools nobody: -inf."""
    if adversarial.isnan().any():
        raise NotFiniteError
    logits = fp32_logits_chunked(model, adversarial)
    margin = logit_margin(logits, labels)
    # Where two classes are level, the model still names one of them.
    margin = margin.where(logits.argmax(1) == labels, margin.clamp_min(torch.finfo(margin.dtype).tiny))
    eps = torch.as_tensor(threat.eps, device=images.device)
    inside = threat.distance(adversarial, images) <= eps * (1 + OF_LENGTH) + ROUNDING
    return margin.where(inside, -torch.inf), logits
