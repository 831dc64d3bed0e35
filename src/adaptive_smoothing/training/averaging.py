"""Moving averages of weights, and their batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

FULL_PRECISION = nullcontext()


class MovingAverage:
    """An exponential moving average of the parameters of a model.

    The decay grows from 0.1 to its final value, so that the initial weights are forgotten early.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters: list[Tensor] = list(model.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Use the averaged parameters inside of the context."""
        current = [parameter.detach().clone() for parameter in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, current)

    def state(self) -> dict[str, Tensor]:
        return {str(position): tensor for position, tensor in enumerate(self.average)}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        for position, tensor in enumerate(self.average):
            tensor.copy_(state[str(position)])


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def learns_statistics(model: nn.Module) -> bool:
    """Return whether training mode updates batch-norm statistics; some models keep theirs fixed."""
    mode = model.training
    model.train()
    learns = any(norm.training for norm in batch_norms(model))
    model.train(mode)
    return learns


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Restore all buffers, such as batch-norm statistics, at the end of the context."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)


@torch.no_grad()
def measure_statistics(
    model: nn.Module, batches: Iterable[Any], arithmetic: AbstractContextManager[Any] = FULL_PRECISION
) -> None:
    """Set batch-norm statistics to their mean over `batches`, computed in this arithmetic.

    Averaged weights need statistics of their own to be accurate. The iterator may use the model in evaluation mode to
    make its batches, so training mode is on for one forward pass at a time.
    """
    norms = batch_norms(model)
    for norm in norms:
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.zero_()  # the first batch replaces the old statistics
    for batch in batches:
        with _cumulative(model, norms), arithmetic:
            model(batch)


@contextmanager
def _cumulative(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Use training mode, with equal weights for all batches in batch-norm statistics."""
    mode, momenta = model.training, [norm.momentum for norm in norms]
    model.train()
    for norm in norms:
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(mode)


class WeightPerturbation:
    """Moves each weight tensor along the gradient of the loss by `strength` times its norm, during one step."""

    def __init__(self, model: nn.Module, strength: float) -> None:
        self.strength = strength
        self.weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.dim() > 1]

    @contextmanager
    def applied(self, loss: Callable[[], Tensor], active: bool = True) -> Iterator[None]:
        """Perturb the weights inside of the context."""
        if not (self.strength and active):
            yield
            return
        change = self._change(torch.autograd.grad(loss(), self.weights))
        self._move(change, 1)
        try:
            yield
        finally:
            self._move(change, -1)

    @torch.no_grad()
    def _move(self, change: list[Tensor], sign: int) -> None:
        for weight, delta in zip(self.weights, change, strict=True):
            weight.add_(delta, alpha=sign)

    @torch.no_grad()
    def _change(self, gradients: tuple[Tensor, ...]) -> list[Tensor]:
        weight_norms, gradient_norms = (torch._foreach_norm(list(tensors)) for tensors in (self.weights, gradients))
        return [
            gradient * (self.strength * weight_norm / (gradient_norm + 1e-12))
            for gradient, weight_norm, gradient_norm in zip(gradients, weight_norms, gradient_norms, strict=True)
        ]
