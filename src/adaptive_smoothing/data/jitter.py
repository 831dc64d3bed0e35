"""Colour jitter: each training image is made a little brighter or darker, flatter or sharper, paler or gaudier."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_smoothing.noise import beside, generator


def jitter(images: Tensor, strength: float, *, seed: int, epoch: int, step: int) -> Tensor:
    """Brightness, contrast and saturation times numbers in 1 ± strength, three for each image; 0 changes nothing."""
    if strength == 0:
        return images
    chance = generator(seed, "jitter", epoch, step)
    factors = 1 + strength * (2 * torch.rand(3, len(images), 1, 1, 1, generator=chance) - 1)
    brightness, contrast, saturation = beside(factors, images.device).to(images.dtype)
    images = brightness * images
    images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, contrast)
    return torch.lerp(images.mean(1, keepdim=True), images, saturation).clamp(0, 1)
