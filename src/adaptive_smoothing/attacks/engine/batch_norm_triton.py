"""The kernels of `batch_norm.py` on a GPU. Importing this module needs Triton, which PyTorch for CUDA installs.

A tensor is a matrix: one column per channel, one row per pixel of the batch. Everything is computed in float32. `norm`
is a `batch_norm.Norm`, whose tensors are float32.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of a tile, and its largest number of channels.
TILE, CHANNELS = 4096, 64
CODES = {None: 0, "relu": 1, "silu": 2}


def forward(inputs: Tensor, norm: Any) -> Tensor:
    """Return activation(batch_norm(inputs))."""
    output = torch.empty_like(inputs)
    _launch(_forward, inputs, inputs, output, norm)
    return output


def backward(gradient: Tensor, inputs: Tensor | None, norm: Any) -> Tensor:
    """Return the gradient of the inputs, which are None if there is no activation."""
    if inputs is None:
        layout = torch.channels_last if gradient.dim() == 4 else torch.contiguous_format
        gradient = gradient.contiguous(memory_format=layout)
    result = torch.empty_like(gradient)
    _launch(_backward, gradient, gradient if inputs is None else inputs, result, norm)
    return result


def _launch(kernel: triton.JITFunction, first: Tensor, second: Tensor, output: Tensor, norm: Any) -> None:
    channels = first.shape[1]
    pixels = first.numel() // channels
    columns = min(CHANNELS, triton.next_power_of_2(channels))
    rows = TILE // columns
    kernel[(triton.cdiv(pixels, rows), triton.cdiv(channels, columns))](
        first, second, output, norm.mean, norm.variance, norm.weight, norm.bias, norm.eps, pixels, channels,
        ACTIVATION=CODES[norm.activation], ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def compile_one() -> None:
    """Compile a kernel without running it, which loads the compiler."""
    image, channel = [torch.bfloat16] * 3, [torch.float32] * 4
    tile = {"ROWS": TILE // CHANNELS, "COLUMNS": CHANNELS}
    _forward.warmup(*image, *channel, 1e-5, TILE, CHANNELS, ACTIVATION=CODES["relu"], **tile, grid=(1,))


@triton.jit
def _tile(pixels, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return row[:, None] * channels + column[None, :], (row < pixels)[:, None] & (column < channels)[None, :], column


@triton.jit
def _scale_and_shift(mean, variance, weight, bias, eps, column, channels):
    inside = column < channels
    scale = tl.load(weight + column, inside) / tl.sqrt(tl.load(variance + column, inside) + eps)
    shift = tl.load(bias + column, inside) - tl.load(mean + column, inside) * scale
    return scale[None, :], shift[None, :]


@triton.jit
def _forward(
    inputs, unused, output, mean, variance, weight, bias, eps, pixels, channels,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    place, inside, column = _tile(pixels, channels, ROWS, COLUMNS)
    scale, shift = _scale_and_shift(mean, variance, weight, bias, eps, column, channels)
    value = tl.load(inputs + place, inside).to(tl.float32) * scale + shift
    if ACTIVATION == 1:
        value = tl.where(value < 0, 0.0, value)  # keeps NaN, as PyTorch does
    if ACTIVATION == 2:
        value = value * tl.sigmoid(value)
    tl.store(output + place, value, inside)


@triton.jit
def _backward(
    gradient, inputs, output, mean, variance, weight, bias, eps, pixels, channels,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    place, inside, column = _tile(pixels, channels, ROWS, COLUMNS)
    scale, shift = _scale_and_shift(mean, variance, weight, bias, eps, column, channels)
    slope = tl.load(gradient + place, inside).to(tl.float32) * scale
    if ACTIVATION > 0:
        value = tl.load(inputs + place, inside).to(tl.float32) * scale + shift
        if ACTIVATION == 1:
            slope = tl.where(value <= 0, 0.0, slope)
        if ACTIVATION == 2:
            share = tl.sigmoid(value)
            slope = slope * share * (1 + value * (1 - share))
    tl.store(output + place, slope, inside)
