"""What a network that mixes is given, and what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class BaseOutputs(NamedTuple):
    """What the networks of the base classifiers say of a batch: logits [N, C], before any `LogitTransform`, and the
    features of the layers that are tapped."""

    g: Tensor
    h: Tensor
    g_features: tuple[Tensor, ...] = ()
    h_features: tuple[Tensor, ...] = ()


class MixerOutput(NamedTuple):
    """How to mix: a score per image [N], the higher the more weight for h, and the logits that stand for those of h's
    network."""

    score: Tensor
    h: Tensor


class Mixer(nn.Module, ABC):
    """Gives alpha its value from the features of both base classifiers, which are computed with their logits.

    The score becomes alpha = sigmoid(scale * score + shift) in the mixed classifier, whose dial these two numbers are.
    `standard_taps` and `robust_taps` name the layers whose features it reads.
    """

    standard_taps: tuple[str, ...] = ()
    robust_taps: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, base_outputs: BaseOutputs) -> MixerOutput: ...
