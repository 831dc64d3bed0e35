"""A gradient for an alpha that has none where it is: one that is clipped, rounded or saturated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# None of these ever falls, so that the way up before them is the way up after them, if there is one.
FLAT_IN_PLACES = {
    *(torch.clamp, torch.clip, torch.clamp_min, torch.clamp_max, Tensor.clamp, Tensor.clip),
    *(Tensor.clamp_min, Tensor.clamp_max, F.hardtanh, F.relu6, F.hardsigmoid, F.threshold, F.relu, Tensor.relu),
    *(torch.round, torch.floor, torch.ceil, torch.sign, torch.relu, torch.sigmoid, torch.tanh, F.sigmoid, F.tanh),
    *(Tensor.round, Tensor.floor, Tensor.ceil, Tensor.sign, Tensor.sigmoid, Tensor.tanh),
}


class StraightThrough(TorchFunctionMode):
    """Functions that are flat in places keep their values and are given the gradient of x itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if func not in FLAT_IN_PLACES:
            return value
        x = args[0] if args else next(iter((kwargs or {}).values()))
        return value.detach() + (x - x.detach()) if value.shape == x.shape else value


class Unclipped(nn.Module):
    """An alpha module with the same values, and a gradient where clipping or saturation takes it away."""

    def __init__(self, alpha: nn.Module) -> None:
        super().__init__()
        self.alpha = alpha
        self.training = alpha.training

    def forward(self, images: Tensor) -> Tensor:
        with StraightThrough():
            return self.alpha(images)
