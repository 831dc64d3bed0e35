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
        self.weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.dim() > 1]

    @contextmanager
    def pushed(self, loss: Callable[[], Tensor], active: bool = True) -> Iterator[None]:
        if not (self.strength and active):
            yield
            return
        push = self._push(torch.autograd.grad(loss(), self.weights))
        self._move(push, 1)
        try:
            yield
        finally:
            self._move(push, -1)

    @torch.no_grad()
    def _move(self, push: list[Tensor], sign: int) -> None:
        for weight, change in zip(self.weights, push, strict=True):
            weight.add_(change, alpha=sign)

    @torch.no_grad()
    def _push(self, gradients: tuple[Tensor, ...]) -> list[Tensor]:
        lengths = torch._foreach_norm(self.weights)
        slopes = torch._foreach_norm(list(gradients))
        return [
            gradient * (self.strength * length / (slope + 1e-12))
            for gradient, length, slope in zip(gradients, lengths, slopes, strict=True)
        ]
