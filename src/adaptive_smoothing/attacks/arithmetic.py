"""The model as attacks call it: the same function in the fastest arithmetic of the device.

Nothing here is trusted: an attack that succeeds is judged again on the model itself. On CUDA the network runs in
bfloat16, channels last, compiled where asked. On ARM CPUs that compute in float16, convolutions do, and so do their
gradients, which torch is slow at: as convolutions with the weights turned around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.half import HALF, HalfConvolutions, with_lifted_gradients
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import trusted_images

# The share of the spread of the logits by which a margin may be off: bfloat16 has eight binary digits, float16 has
# eleven, but sums are made in it, too. Robust networks are off by less than half as much, undefended ones now and then
# by twice as much; where it is more than this on the first images, fast arithmetic is no stand-in for the model.
FINENESS = {"cuda": 2.0**-6, "cpu": 2.0**-6 if HALF else 2.0**-16}


def strays(model: nn.Module, images: Tensor, logits: Tensor) -> bool:
    """Whether fast arithmetic overflows, or says something else than the model, whose logits are given."""
    with torch.no_grad():
        fast = FastModel(model, images.device)(images)
    return not ((fast - logits).abs().amax(1) <= rounding(logits)).all().item()


def rounding(logits: Tensor) -> Tensor:
    """By how much fast arithmetic may be off in the margins of images with these logits."""
    return FINENESS.get(logits.device.type, 2.0**-16) * (logits.amax(1) - logits.amin(1))


class FastModel:
    """Calls `model`, or its `mix`, in fast arithmetic, unless it is to be `precise`; values come back in float32."""

    def __init__(
        self, model: nn.Module, device: torch.device, *, compiled: bool = False, precise: bool = False
    ) -> None:
        self.device, self.precise = device, precise
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
            for context in (*self._arithmetic(), trusted_images()):
                stack.enter_context(context)
            if self._half():
                return with_lifted_gradients(self.function, images)
            return self.function(self._laid_out(images))

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else images

    def _half(self) -> bool:
        return HALF and not self.precise and self.device.type == "cpu"

    def _arithmetic(self) -> list[AbstractContextManager[Any]]:
        if not self.precise and self.device.type == "cuda":
            return [torch.autocast("cuda", torch.bfloat16)]
        if self._half():
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
