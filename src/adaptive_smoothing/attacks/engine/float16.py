"""Convolutions in float16 on ARM CPUs, and their gradients, for which torch has no fast float16 code.

The gradient of cross-entropy of a confident model is so small that float16 would round it to zero. So in the backward
pass, the gradient of each image is multiplied by a power of two at the logits, and divided by it at the image.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from adaptive_smoothing.threat import column

ON_ARM = platform.machine() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
HAS_FLOAT16 = ON_ARM and torch.ops.mkldnn._is_mkldnn_fp16_supported()
# Well within the range of float32.
LARGEST_SCALE = 2.0**100

Output = TypeVar("Output")
Pair = tuple[int, int]


class Float16Convolutions(TorchFunctionMode):
    """A mode, for use inside `torch.autocast`: convolutions run in float16, matrix products in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and not kwargs and (convolution := _arguments(*args)):
            return _Convolution.apply(*convolution)
        if func not in IN_FLOAT32:
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return func(*tree_map(_float32, args), **tree_map(_float32, kwargs))


# Torch computes float16 matrix products without vector instructions, and uses them for gradients of convolutions.
IN_FLOAT32 = {
    *(torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    *(F.linear, F.bilinear, F.scaled_dot_product_attention, F.multi_head_attention_forward),
    *(torch.mm, torch.bmm, torch.matmul, torch.addmm, torch.baddbmm, torch.einsum, torch.cdist),
    *(Tensor.mm, Tensor.bmm, Tensor.matmul, Tensor.addmm, Tensor.baddbmm, Tensor.__matmul__, Tensor.__rmatmul__),
}


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value


def _half(images: Tensor) -> Tensor:
    return images.to(torch.float16, memory_format=torch.channels_last)


def _arguments(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: Pair | str = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> tuple[object, ...] | None:
    """Return the arguments of `_Convolution`, or None if it does not support them.

    The weights must be frozen, and the gradient must be a convolution as well.
    """
    if groups != 1 or images.dim() != 4 or weight.requires_grad or not isinstance(padding, tuple):
        return None
    fits = all(pad <= reach for pad, reach in zip(padding, _reach(weight, dilation), strict=True))
    return (images, weight, bias, stride, padding, dilation) if fits else None


def _reach(weight: Tensor, dilation: Pair) -> list[int]:
    """Return the distance from the first to the last position of a kernel."""
    return [step * (length - 1) for step, length in zip(dilation, weight.shape[2:], strict=True)]


def with_scaled_gradients(function: Callable[[Tensor], Output], images: Tensor) -> Output:
    """Return function(images). Inside, the largest gradient of each image is scaled to between 1 and 2."""
    if not (torch.is_grad_enabled() and images.requires_grad):
        return function(images)
    scale: dict[str, Tensor] = {}
    values, structure = tree_flatten(function(_Unscale.apply(images, scale)))
    return tree_unflatten(list(_Scale.apply(scale, *map(_float32, values))), structure)


class _Scale(torch.autograd.Function):
    """The identity; in the backward pass it scales the gradient of each image and stores the factors."""

    @staticmethod
    def forward(ctx: Any, scale: dict[str, Tensor], *values: Tensor) -> tuple[Tensor, ...]:
        ctx.scale = scale
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Only outputs that depend on the images count: a fixed alpha does not.
        used = [part for part, needed in zip(gradients, ctx.needs_input_grad[1:], strict=True) if needed]
        largest = torch.cat([part.reshape(len(part), -1) for part in used], 1).abs().amax(1)
        # Powers of two are exact. A gradient that is zero or not finite is not scaled.
        usable = (largest > 0) & largest.isfinite()
        scale = torch.exp2(-largest.where(usable, 1.0).log2().floor()).clamp_max(LARGEST_SCALE)
        ctx.scale["factors"] = scale
        return None, *(gradient * column(scale.to(gradient.dtype), gradient) for gradient in gradients)


class _Unscale(torch.autograd.Function):
    """The identity; in the backward pass it divides by the stored factors."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, scale: dict[str, Tensor]) -> Tensor:
        ctx.scale = scale
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / column(ctx.scale["factors"].to(gradient.dtype), gradient), None


class _Convolution(torch.autograd.Function):
    """A convolution in float16, whose gradient is computed as a convolution in float16."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.images, ctx.stride, ctx.padding, ctx.dilation = images.shape, stride, padding, dilation
        bias = None if bias is None else bias.half()
        return torch.conv2d(_half(images), _half(weight), bias, stride, padding, dilation)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Convolve with the flipped kernel, after inserting the zeros that a stride leaves out."""
        (weight,) = ctx.saved_tensors
        reach, gradient = _reach(weight, ctx.dilation), _half(gradient)
        if max(ctx.stride) > 1:
            sides = [side - far + 2 * pad for side, far, pad in zip(ctx.images[2:], reach, ctx.padding, strict=True)]
            spread = _half(gradient.new_zeros(*gradient.shape[:2], *sides))
            spread[:, :, :: ctx.stride[0], :: ctx.stride[1]] = gradient
            gradient = spread
        flipped = _half(weight.flip((2, 3)).transpose(0, 1))
        padding = tuple(far - pad for far, pad in zip(reach, ctx.padding, strict=True))
        return torch.conv2d(gradient, flipped, None, (1, 1), padding, ctx.dilation), *[None] * 5
