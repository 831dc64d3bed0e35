"""Confirm in full precision that an adversarial image is inside the ball and fools the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.threat import Threat

# A float32 pixel that is moved by eps and back has a rounding error. That of an L2 norm is relative and grows with the
# number of pixels: some millionths for an ImageNet image.
PIXEL_ROUNDING, NORM_ROUNDING = 1e-6, 1e-5


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
