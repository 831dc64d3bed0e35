"""Batches: in order for evaluation, shuffled and augmented for training.

Random numbers are drawn on the CPU from a generator keyed by their purpose, the seed, the epoch and the step, so that a
batch is the same on any device and after any restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.data.datasets import ImageData, to_floats
from adaptive_smoothing.noise import generator, to_device
from adaptive_smoothing.settings.checks import check_count


class Batch(NamedTuple):
    """Float images in [0, 1], labels, and the images' positions in the official split."""

    images: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index


class RawBatch(NamedTuple):
    """uint8 images, labels, and the images' positions in the data they were drawn from."""

    images: Tensor
    labels: Tensor
    positions: Tensor


def batches(data: ImageData, size: int, *, device: torch.device | str | None = None) -> Iterator[Batch]:
    """Return all images in order, in batches; the last one may be smaller.

    One batch at a time is converted to floats and moved to `device`, by default that of the data.
    """
    check_count(size=size)

    def batch(start: int) -> Batch:
        # Not `data.take`, which checks the labels and so waits for the device.
        tensors = (tensor[start : start + size] for tensor in (data.images, data.labels, data.index))
        images, labels, index = (tensor.to(device or tensor.device) for tensor in tensors)
        return Batch(to_floats(images), labels, index)

    return map(batch, range(0, len(data), size))


def steps_per_epoch(data: ImageData, size: int) -> int:
    """Return the number of full batches in the data."""
    check_count(size=size)
    return len(data) // size


def shuffled(data: ImageData, size: int, *, seed: int, epoch: int, start: int = 0) -> Iterator[RawBatch]:
    """Return the full batches of one epoch from step `start` on, in an order fixed by seed, epoch and image count."""
    steps = steps_per_epoch(data, size)
    if steps == 0:
        raise ValueError(f"expected a batch size of at most {len(data)}, the size of {data.name}, got {size}")
    if not 0 <= start <= steps:
        raise ValueError(f"expected start from 0 to {steps}, the steps of an epoch, got {start}")
    order = torch.randperm(len(data), generator=generator(seed, "shuffle", epoch)).to(data.images.device)
    rows = (order[step * size : (step + 1) * size] for step in range(start, steps))
    return (RawBatch(data.images[row], data.labels[row], row) for row in rows)


def augment(images: Tensor, *, seed: int, epoch: int, step: int, pad: int = 4, flip: bool = True) -> Tensor:
    """Return images of any dtype, each shifted by up to `pad` pixels each way and mirrored with probability 1/2.

    Pixels outside the image are black.
    """
    # The whole batch is one gather: a pixel of the result is read at its shifted, mirrored position in the source.
    count, channels, height, width = images.shape
    if not 0 <= pad < min(height, width):
        raise ValueError(f"expected pad from 0 to {min(height, width) - 1}, got {pad}")
    chance = generator(seed, "augment", epoch, step)
    shifts = torch.randint(2 * pad + 1, (2, count, 1), generator=chance)
    drawn = torch.cat([shifts, torch.randint(2, (1, count, 1), generator=chance)])
    top, left, mirrored = to_device(drawn, images.device)
    column = torch.arange(width, device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + (torch.where(mirrored.bool(), width - 1 - column, column) if flip else column)
    padded = F.pad(images, [pad] * 4)
    image = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(-1, 1, 1)
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cutout(images: Tensor, size: int, *, seed: int, epoch: int, step: int) -> Tensor:
    """Return images with a square of `size` pixels, centred anywhere, set to 0.5; size 0 erases nothing."""
    if size == 0:
        return images
    count, _, *sides = images.shape
    chance = generator(seed, "cutout", epoch, step)
    centres = torch.stack([torch.randint(side, (count, 1), generator=chance) for side in sides])
    offsets = [
        torch.arange(side, device=images.device) - centre + size // 2
        for side, centre in zip(sides, to_device(centres, images.device), strict=True)
    ]
    rows, columns = ((offset >= 0) & (offset < size) for offset in offsets)
    return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0.5)
