"""A mixing network that grows out of h: a second ending of it, trained for the mixture."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.tail import Tail, tail_after
from adaptive_smoothing.mixing.transforms import LogitTransform
from adaptive_smoothing.models.features import suggest_branch
from adaptive_smoothing.models.resnet import full


class FineTunedTail(Mixer):
    """h goes on twice from `tap`: as it was trained, and as it is better for the mixture.

    The second ending starts as a copy of the first. The mean of their logits stands for h, and a score is read off the
    second one's last features. Neither asks g: what holds against a g that says whatever an attacker wants (training
    setting `hostile`) holds with any g.
    """

    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        tail: Tail,
        tap: str,
        *,
        hidden: int = 128,
        shape: tuple[int, int, int] = (3, 32, 32),
    ) -> None:
        """`shape` of the images, which is remembered to find the tail again."""
        super().__init__()
        self.robust_taps = (tap,)
        self.tail, self.hidden, self.shape = tail, hidden, shape
        classes, features = tail.head.out_features, tail.head.in_features
        self.norm = nn.LayerNorm(features)
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)  # at first the score is zero, and alpha the same for all images
        nn.init.zeros_(last.bias)
        self.scorer = nn.Sequential(
            nn.Linear(2 * classes + features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
        )
        self.log_scale = nn.Parameter(torch.zeros(()))
        # Of the scores that training leaves: a score of mean 0 and variance 1 is what the dial is for.
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of(
        cls, robust: nn.Module, tap: str | None = None, *, shape: tuple[int, int, int] = (3, 32, 32), **options: Any
    ) -> Self:
        """For this h: after the layer `tap`, or after its last stage but one. Options are those of the class."""
        if isinstance(robust, LogitTransform):
            raise ValueError(
                f"expected the network whose ending is to be copied, got a {type(robust).__name__} of one: its logits "
                "are no mean of two endings; pass the network inside, or take a MixingNetwork"
            )
        tap = tap or suggest_branch(robust, shape)
        tail = tail_after(robust, tap, shape)
        return cls(tail.requires_grad_(True), tap, shape=shape, **options).to(tail.head.weight.device).eval()

    @property
    def options(self) -> dict[str, Any]:
        """What `of` was called with, beside h."""
        return {"tap": self.robust_taps[0], "shape": self.shape, "hidden": self.hidden}

    def forward(self, base_outputs: BaseOutputs) -> MixerOutput:
        score, h = self._judged(base_outputs)
        return MixerOutput((score - self.centre) / self.spread, h * self.log_scale.exp())

    def standardize(self, base_outputs: BaseOutputs) -> None:
        """From now on scores have mean 0 and variance 1 on these images."""
        scores, _ = self._judged(base_outputs)
        self.centre.copy_(scores.mean())
        spread = scores.std(correction=0)
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def _judged(self, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        """The score as the scorer has it, and the mean of the two endings."""
        again, pooled = self.tail(base_outputs.h_features[0])
        h = (base_outputs.h + again) / 2
        leads = h.log_softmax(1)
        seen = [leads, leads.sort(1).values, full(self.norm, pooled)]
        return full(self.scorer, torch.cat(seen, dim=1)).squeeze(1), h

    def train(self, mode: bool = True) -> Self:
        """The batch-norm statistics are those of h, which the second ending starts from."""
        super().train(mode)
        self.tail.eval()
        return self

    def extra_repr(self) -> str:
        return f"tap={self.robust_taps[0]!r}"
