"""The model as attacks call it: the same function in the fastest arithmetic of the device.

Nothing here is trusted: an attack that succeeds is judged again on the model itself. On CUDA the network runs in
bfloat16, channels last, compiled where asked. On ARM CPUs that compute in float16, convolutions do, and so do their
gradients, which torch is slow at: as convolutions with the weights turned around.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import trusted_images

ON_ARM = platform.machine() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
HALF = ON_ARM and torch.ops.mkldnn._is_mkldnn_fp16_supported()
# The share of the spread of the logits by which a margin may be off: bfloat16 has eight binary digits, float16 has
# eleven, but sums are made in it, too.
FINENESS = {"cuda": 2.0**-7, "cpu": 2.0**-7 if HALF else 2.0**-16}


# Off by so many times as much, fast arithmetic is no stand-in for the model.
FAR = 16


def strays(model: nn.Module, images: Tensor, logits: Tensor) -> bool:
    """Whether fast arithmetic overflows, or says something else than the model, whose logits are given."""
    with torch.no_grad():
        fast = FastModel(model, images.device)(images)
    return not ((fast - logits).abs().amax(1) <= FAR * rounding(logits)).all().item()


def rounding(logits: Tensor) -> Tensor:
    """By how much fast arithmetic may be off in the margins of images with these logits."""
    return FINENESS.get(logits.device.type, 2.0**-16) * (logits.amax(1) - logits.amin(1))


class FastModel:
    """Calls `model`, or its `mix`, in fast arithmetic, unless it is to be `precise`; values come back in float32."""

    def __init__(
        self, model: nn.Module, device: torch.device, *, compiled: bool = False, precise: bool = False
    ) -> None:
        self.device, self.precise = device, precise
        # One function serves logits and alpha, so that a mixture is compiled once.
        self.mixes = isinstance(model, MixedClassifier)
        function: Callable[..., Any] = model.mix if isinstance(model, MixedClassifier) else model
        self.function = torch.compile(function, dynamic=True) if compiled else function

    def __call__(self, images: Tensor) -> Tensor:
        answer = self._answer(images)
        return (answer.logits if self.mixes else answer).float()

    def mix(self, images: Tensor) -> Any:
        """Logits and alpha of a mixed classifier."""
        return self._answer(images)

    def _answer(self, images: Tensor) -> Any:
        with ExitStack() as stack:
            for context in (*self._arithmetic(), trusted_images()):
                stack.enter_context(context)
            return self.function(self._laid_out(images))

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else images

    def _arithmetic(self) -> list[AbstractContextManager[Any]]:
        if not self.precise and self.device.type == "cuda":
            return [torch.autocast("cuda", torch.bfloat16)]
        if not self.precise and self.device.type == "cpu" and HALF:
            return [torch.autocast("cpu", torch.float16), HalfConvolutions()]
        return []


@contextmanager
def frozen(*models: nn.Module) -> Iterator[None]:
    """No gradient for any weight inside: attacks need that of images only, at half the cost."""
    wanted = [weight for model in models for weight in model.parameters() if weight.requires_grad]
    for weight in wanted:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in wanted:
            weight.requires_grad_(True)


# --- float16 on a CPU -----------------------------------------------------------------------------


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
        turned = _half(weight.flip((2, 3)).transpose(0, 1))
        padding = tuple(far - pad for far, pad in zip(reach, ctx.padding, strict=True))
        return torch.conv2d(gradient, turned, None, (1, 1), padding, ctx.dilation), *[None] * 5
