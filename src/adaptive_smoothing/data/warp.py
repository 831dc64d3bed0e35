"""Random rotation and zoom: each training image is seen a little from elsewhere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.noise import beside, generator


def warp(images: Tensor, degrees: float, *, seed: int, epoch: int, step: int) -> Tensor:
    """Turn each image by up to so many degrees either way, and make it larger or smaller by as much as the turn moves
    its border; 0 changes nothing. What moves in from outside is the image's own mirror image.
    """
    if degrees == 0:
        return images
    most = math.radians(degrees)
    chance = generator(seed, "warp", epoch, step)
    angle, growth = beside(most * (2 * torch.rand(2, len(images), generator=chance) - 1), images.device)
    cosine, sine, middle = growth.exp() * angle.cos(), growth.exp() * angle.sin(), torch.zeros_like(angle)
    maps = torch.stack([cosine, -sine, middle, sine, cosine, middle], dim=1).view(-1, 2, 3).to(images.dtype)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
