"""Convolutions in float16 on a CPU that computes in it, and their gradients, which torch is slow at.

A model that is sure of its class has a gradient of cross-entropy that float16 would round to zero. So gradients are
lifted on their way into the model, image by image and by a power of two, and let down again at the images.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

ON_ARM = platform.machine() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
HALF = ON_ARM and torch.ops.mkldnn._is_mkldnn_fp16_supported()
# What float32 can hold with room to spare.
LARGEST_LIFT = 2.0**100


class HalfConvolutions(TorchFunctionMode):
    """Inside `torch.autocast`: convolutions and their gradients in float16, what torch is slow at in it in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and not kwargs and _applies(*args):
            return _Convolution.apply(*args[:6])
        if func not in IN_FLOAT32:
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return func(*tree_map(_float32, args), **tree_map(_float32, kwargs))


# Torch makes matrix products in float16 one number at a time, and so the gradients of convolutions.
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


def _applies(
    images: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> bool:
    """A convolution with frozen weights whose gradient is a convolution, too."""
    if groups != 1 or images.dim() != 4 or weight.requires_grad or not isinstance(padding, tuple):
        return False
    return all(pad <= reach for pad, reach in zip(padding, _reach(weight, dilation), strict=True))


def _reach(weight: Tensor, dilation: tuple[int, int]) -> list[int]:
    """How far the last of a kernel's places is from the first."""
    return [step * (length - 1) for step, length in zip(dilation, weight.shape[2:], strict=True)]


def with_lifted_gradients(function: Callable[[Tensor], Any], images: Tensor) -> Any:
    """`function(images)`, inside of which the largest gradient of an image is near 1, however small it is outside."""
    if not (torch.is_grad_enabled() and images.requires_grad):
        return function(images)
    lift: dict[str, Tensor] = {}
    values, structure = tree_flatten(function(_LetDown.apply(images, lift)))
    return tree_unflatten(list(_Lift.apply(lift, *map(_float32, values))), structure)


class _Lift(torch.autograd.Function):
    """Changes nothing but the size of gradients: the largest number of each image becomes one from 1 to 2."""

    @staticmethod
    def forward(ctx: Any, lift: dict[str, Tensor], *values: Tensor) -> tuple[Tensor, ...]:
        ctx.lift = lift
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Of what depends on the images: the gradient of a fixed alpha goes nowhere.
        used = [part for part, wanted in zip(gradients, ctx.needs_input_grad[1:], strict=True) if wanted]
        largest = torch.cat([part.reshape(len(part), -1) for part in used], 1).abs().amax(1)
        # A power of two rounds nothing. Where there is no gradient, or none that is finite, there is nothing to lift.
        usable = (largest > 0) & largest.isfinite()
        lift = torch.exp2(-largest.where(usable, 1.0).log2().floor()).clamp_max(LARGEST_LIFT)
        ctx.lift["by"] = lift
        return None, *(gradient * _like(lift, gradient) for gradient in gradients)


class _LetDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, lift: dict[str, Tensor]) -> Tensor:
        ctx.lift = lift
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient / _like(ctx.lift["by"], gradient), None


def _like(lift: Tensor, gradient: Tensor) -> Tensor:
    return lift.to(gradient.dtype).view(-1, *[1] * (gradient.dim() - 1))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.images, ctx.stride, ctx.padding, ctx.dilation = images.shape, stride, padding, dilation
        bias = None if bias is None else bias.half()
        return torch.conv2d(_half(images), _half(weight), bias, stride, padding, dilation)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """With the kernel turned around, and zeros between what came from strides."""
        (weight,) = ctx.saved_tensors
        reach, gradient = _reach(weight, ctx.dilation), _half(gradient)
        if max(ctx.stride) > 1:
            sides = [side - far + 2 * pad for side, far, pad in zip(ctx.images[2:], reach, ctx.padding, strict=True)]
            apart = _half(gradient.new_zeros(*gradient.shape[:2], *sides))
            apart[:, :, :: ctx.stride[0], :: ctx.stride[1]] = gradient
            gradient = apart
        at_setting = _half(weight.flip((2, 3)).transpose(0, 1))
        padding = tuple(far - pad for far, pad in zip(reach, ctx.padding, strict=True))
        return torch.conv2d(gradient, at_setting, None, (1, 1), padding, ctx.dilation), *[None] * 5
