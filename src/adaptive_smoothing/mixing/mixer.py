"""The interface of networks that choose alpha: base outputs in, a score per image and logits of h out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class BaseOutputs(NamedTuple):
    """Outputs of the base networks for a batch: logits [N, C], before any `LogitTransform`, and tapped features."""

    g: Tensor
    h: Tensor
    g_features: tuple[Tensor, ...] = ()
    h_features: tuple[Tensor, ...] = ()


class MixerOutput(NamedTuple):
    """A score per image [N], which is higher where h should get more weight, and the logits to use as those of h."""

    score: Tensor
    h: Tensor


class Mixer(nn.Module, ABC):
    """Chooses alpha from logits and features of the base classifiers, which one pass of each computes.

    The mixed classifier turns the score into alpha = sigmoid(alpha_scale * score + alpha_shift).
    `standard_taps` and `robust_taps` name the layers whose features the mixer reads.
    """

    standard_taps: tuple[str, ...] = ()
    robust_taps: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, base_outputs: BaseOutputs) -> MixerOutput: ...
