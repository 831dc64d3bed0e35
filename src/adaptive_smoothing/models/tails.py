"""The part of a classifier after one of its layers, as a network of its own: features -> pooled features -> logits.

Most networks are a chain of layers with a pooling somewhere, but say so only in code. A tail is guessed from the order
of the layers and believed when it gives the classifier's own logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.features import FeatureTaps, find_layer
from adaptive_smoothing.models.resnet import full
from adaptive_smoothing.noise import generator

# Ways to make one row of numbers of what the last linear layer is given.
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "flatten": lambda features: features.flatten(1),
    "mean": lambda features: features.mean((2, 3) if features.dim() == 4 else 1),
    "first token": lambda features: features[:, 0],
    "mean of the other tokens": lambda features: features[:, 1:].mean(1),
}


class Tail(nn.Module):
    """Layers in a row, a pooling where the layers have none, and the last linear layer."""

    def __init__(self, layers: list[nn.Module], head: nn.Linear, pooling: str) -> None:
        super().__init__()
        self.layers, self.head, self.pooling = nn.ModuleList(layers), head, pooling

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and the row of numbers that they are made of: [N, C] and [N, F]."""
        for layer in self.layers:
            features = layer(features)
        pooled = POOLINGS[self.pooling](features.to(self.head.weight.dtype))
        return full(self.head, pooled), pooled


def tail_after(model: nn.Module, layer: str, shape: tuple[int, int, int] = (3, 32, 32)) -> Tail:
    """A copy of what `model` does after `layer`; its logits are compared with the model's on random images."""
    find_layer(model, layer)
    layers = _layers_after(model, layer)
    if not layers:
        raise ValueError(
            f"expected a linear layer in {type(model).__name__} after {layer!r}, got none: choose an earlier one"
        )
    head = cast(nn.Linear, layers.pop())
    weight = head.weight
    images = torch.rand(2, *shape, generator=generator(0, "probe", *shape)).to(weight.device, weight.dtype)
    with torch.no_grad():
        logits, features = FeatureTaps(model, [layer])(images)
        for pooling in POOLINGS:
            tail = Tail(layers, head, pooling)
            if _agrees(tail, features[layer], logits):
                return copy.deepcopy(tail)
    raise ValueError(
        f"expected what {type(model).__name__} does after {layer!r} to be its layers in their order, and it is not: "
        "pass a Tail of your own, or choose a later layer"
    )


def _layers_after(model: nn.Module, layer: str) -> list[nn.Module]:
    """Whatever comes after `layer` in the order in which the model holds its layers, up to the last linear one."""
    layers: list[nn.Module] = []
    path = layer.split(".")
    for depth in range(len(path), 0, -1):
        parent = model.get_submodule(".".join(path[: depth - 1]))
        names = [name for name, _ in parent.named_children()]
        layers += [getattr(parent, name) for name in names[names.index(path[depth - 1]) + 1 :]]
    while layers and not isinstance(layers[-1], nn.Linear):
        last = layers.pop()
        layers += list(last.children())
    return layers


def _agrees(tail: Tail, features: Tensor, logits: Tensor) -> bool:
    try:
        found, _ = tail(features)
    except (RuntimeError, IndexError, TypeError):  # shapes that do not fit: another pooling
        return False
    return found.shape == logits.shape and torch.allclose(found, logits, rtol=1e-3, atol=1e-4)
