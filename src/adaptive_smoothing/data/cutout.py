"""Cutout (DeVries and Taylor 2017): a square of each training image is erased."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_smoothing.noise import generator, to_device


def cutout(images: Tensor, size: int, *, seed: int, epoch: int, step: int) -> Tensor:
    """Return images with a square of `size` pixels, centred anywhere, set to 0.5; size 0 erases nothing."""
    if size == 0:
        return images
    count, _, height, width = images.shape
    chance = generator(seed, "cutout", epoch, step)
    centres = torch.stack(
        [
            torch.randint(height, (count, 1), generator=chance),
            torch.randint(width, (count, 1), generator=chance),
        ]
    )
    row, column = to_device(centres, images.device)
    rows = _near(row, height, size)[:, None, :, None]
    columns = _near(column, width, size)[:, None, None, :]
    return images.masked_fill(rows & columns, 0.5)


def _near(centre: Tensor, length: int, size: int) -> Tensor:
    offset = torch.arange(length, device=centre.device) - centre + size // 2
    return (offset >= 0) & (offset < size)
