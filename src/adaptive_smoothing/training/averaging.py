"""The weights of a model in training: moving averages, batch-norm statistics and adversarial perturbation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
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

    @torch.no_grad()
    def copy_to_model(self) -> None:
        torch._foreach_copy_(self.parameters, self.average)


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore all parameters and buffers, such as batch-norm statistics, at the end of the context."""
    before = [tensor.detach().clone() for tensor in chain(model.parameters(), model.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(chain(model.parameters(), model.buffers()), before, strict=True):
                tensor.copy_(value)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def learns_statistics(model: nn.Module) -> bool:
    """Return whether training mode updates batch-norm statistics; some models keep theirs fixed."""
    mode = model.training
    model.train()
    learns = any(norm.training for norm in batch_norms(model))
    model.train(mode)
    return learns


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
        mode, momenta = model.training, [norm.momentum for norm in norms]
        model.train()
        for norm in norms:
            norm.momentum = None  # equal weights for all batches
        with arithmetic:
            model(batch)
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
        gradients = torch.autograd.grad(loss(), self.weights)
        with torch.no_grad():
            norms = zip(torch._foreach_norm(self.weights), torch._foreach_norm(gradients), strict=True)
            factors = [self.strength * weight / (gradient + 1e-12) for weight, gradient in norms]
            change = [gradient * factor for gradient, factor in zip(gradients, factors, strict=True)]
            torch._foreach_add_(self.weights, change)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_sub_(self.weights, change)
