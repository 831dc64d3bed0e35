"""Adversarial weight perturbation (AWP, Wu et al. 2020), which reduces robust overfitting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
