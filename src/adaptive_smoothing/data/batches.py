"""Batches: in order for evaluation, shuffled and augmented for training.

Random numbers are drawn on the CPU from a generator keyed by their purpose, so that a batch is the same on any device
and after any restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.data.datasets import ImageData, to_floats
from adaptive_smoothing.noise import generator, to_device


def cutout(images: Tensor, size: int, *, seed: int, epoch: int, step: int) -> Tensor:
    """Return images with a square of `size` pixels, centred anywhere, set to 0.5; size 0 erases nothing."""
    if size == 0:
        return images
    count, _, height, width = images.shape
    chance = generator(seed, "cutout", epoch, step)
    centres = torch.stack(
        [torch.randint(height, (count, 1), generator=chance), torch.randint(width, (count, 1), generator=chance)]
    )
    row, column = to_device(centres, images.device)
    rows = _near(row, height, size)[:, None, :, None]
    columns = _near(column, width, size)[:, None, None, :]
    return images.masked_fill(rows & columns, 0.5)


def _near(centre: Tensor, length: int, size: int) -> Tensor:
    offset = torch.arange(length, device=centre.device) - centre + size // 2
    return (offset >= 0) & (offset < size)


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
    """Yield all images in order; the last batch may be smaller. One batch at a time is in floats and on `device`."""
    _check_size(size)
    device = device or data.images.device
    return (_batch(data, slice(start, start + size), device) for start in range(0, len(data), size))


def _batch(data: ImageData, rows: slice, device: torch.device | str) -> Batch:
    return Batch(to_floats(data.images[rows].to(device)), data.labels[rows].to(device), data.index[rows].to(device))


def steps_per_epoch(data: ImageData, size: int) -> int:
    """Return the number of full batches that `shuffled` yields."""
    _check_size(size)
    return len(data) // size


def shuffled(data: ImageData, size: int, *, seed: int, epoch: int, start: int = 0) -> Iterator[RawBatch]:
    """Yield the full batches of one epoch in random order, from step `start` on, without the remainder.

    The order depends on (seed, epoch) and the number of images, so that a resumed epoch continues where it stopped.
    """
    steps = steps_per_epoch(data, size)
    if steps == 0:
        raise ValueError(f"expected a batch size of at most {len(data)}, the size of {data.name}, got {size}")
    if not 0 <= start <= steps:
        raise ValueError(f"expected start from 0 to {steps}, the steps of an epoch, got {start}")
    order = torch.randperm(len(data), generator=generator(seed, "shuffle", epoch)).to(data.images.device)
    rows = (order[step * size : (step + 1) * size] for step in range(start, steps))
    return (RawBatch(data.images[row], data.labels[row], row) for row in rows)


def augment(
    images: Tensor, *, seed: int, epoch: int, step: int, pad: int = 4, flip: bool = True, reflect: bool = False
) -> Tensor:
    """Return images of any dtype, each shifted by up to `pad` pixels each way and mirrored with probability 1/2.

    Pixels from outside are black, or with `reflect` those of the image reflected at its border. The whole batch is one
    gather: a pixel of the result is read at its shifted, mirrored position in the source.
    """
    count, channels, height, width = images.shape
    if not 0 <= pad < min(height, width):
        raise ValueError(f"expected pad from 0 to {min(height, width) - 1}, got {pad}")
    top, left, mirrored = _draw(count, pad, generator(seed, "augment", epoch, step), images.device)
    column = torch.arange(width, device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + (torch.where(mirrored.bool(), width - 1 - column, column) if flip else column)
    if reflect:
        source, rows, columns = images, _fold(rows - pad, height), _fold(columns - pad, width)
    else:
        source = F.pad(images, [pad] * 4)
    image = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(-1, 1, 1)
    return source[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _draw(count: int, pad: int, chance: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return per image the rows and columns of the padded image to skip, and whether to mirror; each (count, 1)."""
    shifts = torch.randint(2 * pad + 1, (2, count, 1), generator=chance)
    drawn = torch.cat([shifts, torch.randint(2, (1, count, 1), generator=chance)])
    top, left, mirrored = to_device(drawn, device)
    return top, left, mirrored


def _fold(position: Tensor, length: int) -> Tensor:
    """Return positions with those outside [0, length) reflected at the border pixels."""
    return length - 1 - (length - 1 - position.abs()).abs()


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {size}")
