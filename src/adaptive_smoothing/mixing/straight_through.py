"""A gradient of alpha where it is clipped, rounded or saturated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# None of these ever falls where its input rises.
FLAT_IN_PLACES = {
    *(torch.clamp, torch.clip, torch.clamp_min, torch.clamp_max, torch.minimum, torch.maximum, torch.relu),
    *(Tensor.clamp, Tensor.clip, Tensor.clamp_min, Tensor.clamp_max, Tensor.minimum, Tensor.maximum, Tensor.relu),
    *(F.hardtanh, F.relu6, F.hardsigmoid, F.threshold, F.relu, F.sigmoid, F.tanh, torch.special.expit),
    *(torch.round, torch.floor, torch.ceil, torch.sign, torch.sigmoid, torch.tanh),
    *(Tensor.round, Tensor.floor, Tensor.ceil, Tensor.sign, Tensor.sigmoid, Tensor.tanh),
}


class StraightThrough(TorchFunctionMode):
    """Functions that are flat in places keep their values and are given the gradient of their input.

    Only of one number an image: what a network ends with, not what it is made of.
    """

    def __init__(self, images: int) -> None:
        super().__init__()
        self.images = images

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if func not in FLAT_IN_PLACES or value.numel() != self.images:
            return value
        inputs = (part for part in (*args, *kwargs.values()) if isinstance(part, Tensor) and part.requires_grad)
        score = next((part for part in inputs if part.shape == value.shape), None)
        return value if score is None else follow(score, value.detach())


def follow(score: Tensor, value: Tensor) -> Tensor:
    """The value, with the gradient of the score."""
    return _Through.apply(score, value)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
