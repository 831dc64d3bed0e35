"""A mixer made from h: a copy of its last stage that is fine-tuned for the mixture."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.tail import Tail, tail_after
from adaptive_smoothing.mixing.transforms import LogitTransform
from adaptive_smoothing.models.features import suggest_branch
from adaptive_smoothing.models.resnet import without_autocast


class FineTunedTail(Mixer):
    """A fine-tuned copy of the layers of h after `tap`, and a small network that scores the image.

    The copy starts with the weights of h. The mean of the logits of h and of the copy replaces the logits of h. The
    score is computed from these logits and the last features of the copy. Neither depends on g.

    Args:
        tail: the layers of h after `tap`.
        hidden: width of the network that computes the score.
        shape: shape of the images, which is stored to find the tail again.
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
        super().__init__()
        self.robust_taps = (tap,)
        self.tail, self.hidden, self.shape = tail, hidden, shape
        classes, features = tail.head.out_features, tail.head.in_features
        self.norm = nn.LayerNorm(features)
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)  # the score starts at zero, so that all images have the same alpha
        nn.init.zeros_(last.bias)
        self.scorer = nn.Sequential(
            nn.Linear(2 * classes + features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
        )
        self.log_scale = nn.Parameter(torch.zeros(()))
        # Mean and standard deviation of the scores after training: alpha_scale and alpha_shift act on scores of mean 0
        # and variance 1.
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of(
        cls,
        robust: nn.Module,
        tap: str | None = None,
        *,
        shape: tuple[int, int, int] = (3, 32, 32),
        hidden: int = 128,
    ) -> Self:
        """Return a mixer for this h, with a copy of the layers after `tap`: by default of its last stage."""
        if isinstance(robust, LogitTransform):
            raise ValueError(
                f"expected the network whose last stage is copied, got a {type(robust).__name__} of one: pass the "
                "network inside, or use a MixingNetwork"
            )
        tap = tap or suggest_branch(robust, shape)
        tail = tail_after(robust, tap, shape)
        return cls(tail.requires_grad_(True), tap, shape=shape, hidden=hidden).to(tail.head.weight.device).eval()

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of `of`, without h."""
        return {"tap": self.robust_taps[0], "shape": self.shape, "hidden": self.hidden}

    def forward(self, base_outputs: BaseOutputs) -> MixerOutput:
        score, h = self._raw_score_and_h(base_outputs)
        return MixerOutput((score - self.centre) / self.spread, h * self.log_scale.exp())

    def standardize(self, base_outputs: BaseOutputs) -> None:
        """Shift and scale the scores to mean 0 and variance 1 on these images."""
        scores, _ = self._raw_score_and_h(base_outputs)
        self.centre.copy_(scores.mean())
        spread = scores.std(correction=0)
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def _raw_score_and_h(self, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        """Return the score before it is standardised, and the mean of the logits of h and of the fine-tuned copy."""
        tail_logits, pooled = self.tail(base_outputs.h_features[0])
        h = (base_outputs.h + tail_logits) / 2
        log_h = h.log_softmax(1)
        inputs = [log_h, log_h.sort(1).values, without_autocast(self.norm, pooled)]
        return without_autocast(self.scorer, torch.cat(inputs, dim=1)).squeeze(1), h

    def train(self, mode: bool = True) -> Self:
        """Set the mode, except for the tail, which keeps the batch-norm statistics of h."""
        super().train(mode)
        self.tail.eval()
        return self

    def extra_repr(self) -> str:
        return f"tap={self.robust_taps[0]!r}"
