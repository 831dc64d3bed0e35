"""The alpha(x) of the paper's existence theorem (THM:ADA), with which the mixture is correct wherever g or h is.

This alpha reads the true labels, so it is not a defence. It shows how much of the trade-off alpha(x) alone could
remove. The labels belong to one batch: attack the mixture with `ads.PGD` on that batch, which keeps images together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier


class OracleAlpha(nn.Module):
    """alpha(x) = 0 where the standard classifier is correct, else 1, for the batch with these labels."""

    labels: Tensor

    def __init__(self, standard: nn.Module, labels: Tensor) -> None:
        super().__init__()
        if labels.dim() != 1 or labels.is_floating_point():
            raise ValueError(f"expected one integer label per image, got {labels.dtype} of shape {list(labels.shape)}")
        self.standard = standard
        self.register_buffer("labels", labels)
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        if self.labels.shape != images.shape[:1]:
            expected = f"expected {len(self.labels)} images, one for each label"
            raise ValueError(f"{expected}, got {len(images)}: make an OracleAlpha for each batch")
        with torch.no_grad():
            predicted = self.standard(images).argmax(1)
        return (predicted != self.labels.to(predicted.device)).to(images.dtype)


def oracle_mixture(standard: nn.Module, robust: nn.Module, labels: Tensor) -> MixedClassifier:
    """Return the mixture that is correct exactly where the standard or the robust classifier is."""
    return MixedClassifier(standard, robust, alpha=OracleAlpha(standard, labels))
