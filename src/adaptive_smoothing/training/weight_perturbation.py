"""An adversary in weight space (AWP, Wu et al. 2020): flatter minima, less robust overfitting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightPerturbation:
    """Pushes each weight tensor up the loss by `strength` times its own norm, for the length of one step."""

    def __init__(self, model: nn.Module, strength: float) -> None:
        self.strength = strength
        self.weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]

    @contextmanager
    def pushed(self, loss: Callable[[], Tensor], active: bool = True) -> Iterator[None]:
        if not (self.strength and active):
            yield
            return
        gradients = torch.autograd.grad(loss(), self.weights)
        push = self._push(gradients)
        with torch.no_grad():
            torch._foreach_add_(self.weights, push)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_sub_(self.weights, push)

    @torch.no_grad()
    def _push(self, gradients: tuple[Tensor, ...]) -> list[Tensor]:
        lengths = torch._foreach_norm(self.weights)
        slopes = torch._foreach_norm(list(gradients))
        return [
            gradient * (self.strength * length / (slope + 1e-12))
            for gradient, length, slope in zip(gradients, lengths, slopes, strict=True)
        ]
