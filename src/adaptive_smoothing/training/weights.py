"""Weights of a model in training: their moving average, batch-norm statistics, and adversarial perturbation (AWP)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs


class MovingAverage:
    """An exponential moving average of the parameters of a model, in `values`.

    The decay grows from 0.1 to its final value, so that the initial weights are forgotten early.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters: list[Tensor] = list(model.parameters())
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the current parameters."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self.parameters, 1 - decay)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Overwrite the parameters of the model with the average."""
        torch._foreach_copy_(self.parameters, self.values)


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


@torch.no_grad()
def measure_statistics(
    model: nn.Module, batches: Iterable[Tensor | BaseOutputs], arithmetic: torch.autocast | None = None
) -> None:
    """Set batch-norm statistics to their mean over `batches`. Each forward pass runs in this arithmetic.

    Averaged weights need statistics of their own to be accurate. `batches` may be a generator that calls the model in
    evaluation mode, so training mode is on for one forward pass at a time.
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
        with arithmetic or nullcontext():
            model(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(mode)


def learns_statistics(model: nn.Module) -> bool:
    """Return whether training mode updates batch-norm statistics; some models keep theirs fixed."""
    mode = model.training
    model.train()
    learns = any(norm.training for norm in batch_norms(model))
    model.train(mode)
    return learns


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch-norm layers of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


class WeightPerturbation:
    """Adversarial weight perturbation (Wu et al. 2020) of the weight matrices and kernels of a model.

    Each tensor moves along the gradient of the loss by `strength` times its own norm.
    """

    def __init__(self, model: nn.Module, strength: float) -> None:
        self.strength = strength
        self.weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.dim() > 1]

    @contextmanager
    def applied(self, loss: Callable[[], Tensor], active: bool = True) -> Iterator[None]:
        """Perturb the weights along the gradient of `loss` inside of the context."""
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
