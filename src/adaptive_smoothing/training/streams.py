"""A network with two streams: shared weights, and batch norms for each of two kinds of training images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from adaptive_smoothing.training.weights import batch_norms

Function = Callable[[Tensor], Tensor]


class TwoStreams(nn.Module):
    """A network and a second one that shares all weights but those of the batch norms (Xie et al. 2020).

    `first` is the network that is kept after training. `second` is for images with strong augmentation, whose
    statistics would otherwise disturb those of `first`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.first = network
        self.second = copy.deepcopy(network)
        own = {id(parameter) for norm in batch_norms(self.second) for parameter in norm.parameters()}
        for mine, shared in zip(self.second.modules(), network.modules(), strict=True):
            for name, parameter in list(mine.named_parameters(recurse=False)):
                if id(parameter) not in own:
                    setattr(mine, name, getattr(shared, name))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the first stream."""
        logits: Tensor = self.first(images)
        return logits


@dataclass(frozen=True)
class StreamFunctions:
    """Both streams as they run in training. A call runs the first one."""

    first: Function
    second: Function

    def __call__(self, images: Tensor) -> Tensor:
        return self.first(images)
