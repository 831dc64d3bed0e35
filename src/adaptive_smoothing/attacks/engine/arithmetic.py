"""The model as attacks call it: the same function in the fastest arithmetic of the device that will do.

Nothing here is trusted: an attack that succeeds is judged again on the model itself. On CUDA the network runs in
bfloat16, channels last, compiled where asked; one that makes much of small differences in TF32, which is slower, and
has eight times as many steps between two numbers. On ARM CPUs that compute in float16, convolutions do, and so do their
gradients, which torch is slow at: as convolutions with the weights turned around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.float16 import HALF, HalfConvolutions, with_lifted_gradients
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.inference import float32_as

# The share of the spread of the logits by which a margin may be off: bfloat16 has eight binary digits, float16 has
# eleven, but on a CPU sums are made in it, too. Robust networks are off by less than half as much, undefended ones now
# and then by twice as much; where it is more than this on the first images, it is no stand-in for the model.
FINENESS = 2.0**-6


@dataclass(frozen=True)
class Arithmetic:
    """What networks are computed in: the type that `torch.autocast` gives them, and what becomes of float32."""

    name: str
    autocast: torch.dtype | None = None
    float32: str | None = None
    fineness: float = FINENESS

    def rounding(self, logits: Tensor) -> Tensor:
        """By how much the margins of images with these logits may be off."""
        return self.fineness * (logits.amax(1) - logits.amin(1))

    def of_float32(self) -> AbstractContextManager[None]:
        """To be around a gradient as well, which would have a precision of its own."""
        return nullcontext() if self.float32 is None else float32_as(self.float32)

    def strays(self, model: nn.Module, images: Tensor, logits: Tensor) -> bool:
        """Whether it overflows, or says something else than the model, whose logits are given."""
        return not (self.error(model, images, logits) <= self.rounding(logits)).all().item()

    def error(self, model: nn.Module, images: Tensor, logits: Tensor) -> Tensor:
        """By how much it is off, image by image, from the model's own logits."""
        with torch.no_grad(), self.of_float32():
            found = FastModel(model, images.device, self)(images)
        return (found - logits).abs().amax(1)


FULL = Arithmetic("full precision", float32="ieee", fineness=2.0**-16)
AS_IT_IS = Arithmetic("float32", fineness=2.0**-16)
TF32 = Arithmetic("TF32", float32="tf32")
BFLOAT16, FLOAT16 = Arithmetic("bfloat16", torch.bfloat16), Arithmetic("float16", torch.float16)


def fast(device: torch.device) -> tuple[Arithmetic, ...]:
    """What a device has, in the order to be tried on a model. If nothing will do, there is full precision."""
    if device.type == "cuda":
        return BFLOAT16, TF32
    return (FLOAT16,) if HALF and device.type == "cpu" else (AS_IT_IS,)


class FastModel:
    """Calls `model`, or its `mix`, in the fastest arithmetic of the device, or another; values come back in float32."""

    def __init__(
        self, model: nn.Module, device: torch.device, arithmetic: Arithmetic | None = None, *, compiled: bool = False
    ) -> None:
        self.device, self.arithmetic = device, arithmetic or fast(device)[0]
        # One function serves the logits and all that made them, so that a mixture is compiled once.
        self.mixes = isinstance(model, MixedClassifier)
        function: Callable[..., Any] = model.mix if isinstance(model, MixedClassifier) else model
        self.function = torch.compile(function, dynamic=True) if compiled else function

    def __call__(self, images: Tensor) -> Tensor:
        answer = self._answer(images)
        return (answer.logits if self.mixes else answer).float()

    def mix(self, images: Tensor) -> Any:
        """All that a mixed classifier says."""
        return self._answer(images)

    def _answer(self, images: Tensor) -> Any:
        with ExitStack() as stack:
            for context in (*self._contexts(), trusted_images()):
                stack.enter_context(context)
            if self._half():
                return with_lifted_gradients(self.function, images)
            return self.function(self._laid_out(images))

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else images

    def _half(self) -> bool:
        return self.arithmetic.autocast == torch.float16

    def _contexts(self) -> list[AbstractContextManager[Any]]:
        if self.arithmetic.autocast is None:
            return []
        casting: list[AbstractContextManager[Any]] = [torch.autocast(self.device.type, self.arithmetic.autocast)]
        return [*casting, HalfConvolutions()] if self._half() else casting


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
