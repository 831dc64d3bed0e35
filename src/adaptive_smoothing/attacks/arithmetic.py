"""The model as attacks call it: the same function in the fastest arithmetic of the device.

Nothing here is trusted: an attack that succeeds is judged again on the model itself. On CUDA the network runs in
bfloat16, channels last, compiled where asked. On ARM CPUs its convolutions run by Winograd's algorithm, and the
gradient of a convolution as a convolution with the weights turned around, twice as fast as torch's own there.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import trusted_images

# The share of the logits' spread by which a margin may be off: bfloat16 has eight binary digits, and errors add up.
FINENESS = {"cuda": 2.0**-7}
FINE = 2.0**-16


def rounding(logits: Tensor) -> Tensor:
    """By how much fast arithmetic may be off in the margins of images with these logits."""
    return FINENESS.get(logits.device.type, FINE) * (logits.amax(1) - logits.amin(1))


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
        with self._arithmetic(), trusted_images():
            return self.function(self._laid_out(images))

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else images

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if self.precise:
            return nullcontext()
        if self.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return ArmConvolutions() if self.device.type == "cpu" and ON_ARM else nullcontext()


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


ON_ARM = platform.machine() in ("aarch64", "arm64") and torch.backends.nnpack.is_available()
# Winograd's algorithm pays for itself from this many channels on.
CHANNELS = 16


class ArmConvolutions(TorchFunctionMode):
    """3x3 convolutions of stride 1 with frozen weights, faster than torch chooses on ARM."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and not kwargs and _applies(*args):
            return _Winograd.apply(*args[:3])
        return func(*args, **(kwargs or {}))


def _applies(
    images: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> bool:
    return (
        images.dtype == torch.float32
        and not weight.requires_grad
        and weight.shape[2:] == (3, 3)
        and min(weight.shape[:2]) >= CHANNELS
        and (stride, padding, dilation, groups) == ((1, 1), (1, 1), (1, 1), 1)
    )


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return torch._nnpack_spatial_convolution(images.contiguous(), weight.contiguous(), bias, 1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        turned = weight.flip((2, 3)).transpose(0, 1).contiguous()
        return torch._nnpack_spatial_convolution(gradient.contiguous(), turned, None, 1, 1), None, None
