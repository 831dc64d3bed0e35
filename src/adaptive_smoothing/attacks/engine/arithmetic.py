"""Arithmetics, in which a model can be computed, and the model that attacks call in one of them.

An attack uses the fastest arithmetic that is accurate enough; its successes are confirmed in full precision. On CUDA,
this is bfloat16, with images in channels-last format, or TF32 for models that depend on small differences. TF32 is
slower and has three more bits. On ARM CPUs that support float16, convolutions and their gradients run in it. Other
devices use float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.batch_norm import (
    FusedBatchNorm,
    Plan,
    WrongPlanError,
    activations_after_norms,
    has_kernels,
)
from adaptive_smoothing.attacks.engine.cast_weights import CastWeights
from adaptive_smoothing.attacks.engine.float16 import HAS_FLOAT16, Float16Convolutions, with_scaled_gradients
from adaptive_smoothing.mixing.classifier import MixedClassifier, MixedOutput
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.inference import compiled_for_any_size, float32_as

# The largest error of a margin, as a share of the spread of the logits. If the error on the first images is larger, the
# arithmetic is not used. bfloat16 has 8 bits; float16 has 11, but a CPU also computes sums in it. Robust networks have
# less than half of this error, undefended ones sometimes twice as much.
TOLERANCE = 2.0**-6


@dataclass(frozen=True)
class Arithmetic:
    """The precision in which a model is computed, and the error that this may cause."""

    name: str
    autocast: torch.dtype | None = None
    float32: str | None = None  # the precision of float32 products, `ieee` or `tf32`; None: torch's present setting
    tolerance: float = TOLERANCE

    def rounding(self, logits: Tensor) -> Tensor:
        """Return the largest error to expect of the margin of each image, given its logits."""
        return self.tolerance * (logits.amax(1) - logits.amin(1))

    def float32_context(self) -> AbstractContextManager[None]:
        """Return a context with the precision of float32. It must enclose the backward pass as well."""
        return nullcontext() if self.float32 is None else float32_as(self.float32)

    def is_accurate(self, model: nn.Module, images: Tensor, logits: Tensor) -> bool:
        """Return whether all errors are within the tolerance; `logits` are those of full precision."""
        return bool((self.error(model, images, logits) <= self.rounding(logits)).all().item())

    def error(self, model: nn.Module, images: Tensor, logits: Tensor) -> Tensor:
        """Return the largest difference of each image's logits from `logits`."""
        with torch.no_grad(), self.float32_context():
            found = FastModel(model, images.device, self)(images)
        return (found - logits).abs().amax(1)


# DEFAULT_FLOAT32 uses torch's present setting of float32, which is full precision on a CPU.
FULL_PRECISION = Arithmetic("full precision", float32="ieee", tolerance=2.0**-16)
DEFAULT_FLOAT32 = Arithmetic("float32", tolerance=2.0**-16)
TF32 = Arithmetic("TF32", float32="tf32")
BFLOAT16, FLOAT16 = Arithmetic("bfloat16", torch.bfloat16), Arithmetic("float16", torch.float16)


def fast_arithmetics(device: torch.device) -> tuple[Arithmetic, ...]:
    """Return the arithmetics to try on a device, the fastest first; if none is accurate, full precision is used."""
    if device.type == "cuda":
        return BFLOAT16, TF32
    return (FLOAT16,) if HAS_FLOAT16 and device.type == "cpu" else (DEFAULT_FLOAT32,)


class FastModel:
    """A model in an arithmetic, by default the fastest of the device. It returns float32 logits.

    In fast arithmetic on a GPU, batch norms are fused with the activations after them (`batch_norm.py`). With
    `fixed_weights`, which must never change, weights are cast once (`cast_weights.py`). Neither applies to a model that
    is compiled, or has a compiled part: the compiler does much the same.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        arithmetic: Arithmetic | None = None,
        *,
        compiled: bool = False,
        fixed_weights: bool = False,
    ) -> None:
        self.device, self.arithmetic = device, arithmetic or fast_arithmetics(device)[0]
        # Both `__call__` and `mix` of a mixture use its `mix`, so that one function is compiled.
        function: Callable[[Tensor], Tensor | MixedOutput] = model.mix if isinstance(model, MixedClassifier) else model
        self.function = compiled_for_any_size(function) if compiled else function
        compiled = compiled or any(map(_is_compiled, model.modules()))
        self.fuses = not compiled and self.arithmetic != FULL_PRECISION and has_kernels(device)
        self._plan: Plan | None = None
        keeps = fixed_weights and not compiled and self.arithmetic == BFLOAT16
        self._weights: AbstractContextManager[Any] = CastWeights(torch.bfloat16) if keeps else nullcontext()

    def __call__(self, images: Tensor) -> Tensor:
        answer = self._answer(images)
        return (answer.logits if isinstance(answer, MixedOutput) else answer).float()

    def mix(self, images: Tensor) -> MixedOutput:
        """Return the full output of a mixed classifier."""
        answer = self._answer(images)
        assert isinstance(answer, MixedOutput)
        return answer

    def _answer(self, images: Tensor) -> Tensor | MixedOutput:
        with ExitStack() as stack:
            stack.enter_context(trusted_images())
            if self.arithmetic.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, self.arithmetic.autocast))
            if self.arithmetic.autocast == torch.float16:
                stack.enter_context(Float16Convolutions())
                return with_scaled_gradients(self.function, images)
            if self.device.type == "cuda":
                images = images.contiguous(memory_format=torch.channels_last)
            stack.enter_context(self._weights)
            return self._fused(images) if self.fuses else self.function(images)

    def _fused(self, images: Tensor) -> Tensor | MixedOutput:
        """Return the answer with fused batch norms. After a wrong plan, activations are computed on their own."""
        if self._plan is None:
            self._plan = activations_after_norms(self.function, images)
        try:
            with FusedBatchNorm(self._plan):
                return self.function(images)
        except WrongPlanError:
            self._plan = {}
            return self._fused(images)


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module was compiled by torch or is TorchScript, whose function calls no mode can see."""
    # Importing the compiler's classes would take two seconds.
    by_dynamo = type(module).__module__.startswith("torch._dynamo") or module._compiled_call_impl is not None
    return by_dynamo or isinstance(module, torch.jit.ScriptModule)
