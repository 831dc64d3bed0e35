"""Classifiers made of another one's logits: certain of its prediction, or surer where it is sure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.mixing.formula import NEVER
from adaptive_smoothing.models.contract import check_eval, check_logit_form, with_zero_gradient


class LogitTransform(nn.Module, ABC):
    """A classifier whose logits are a function of those of `model`. `train()` leaves `model` in eval mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_eval(model)
        self.model = model
        self.training = False

    @property
    def num_classes(self) -> int | None:
        return getattr(self.model, "num_classes", None)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        check_logit_form(logits, images)
        return self.transform(logits, images)

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What it was made with, beside the model."""

    @abstractmethod
    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        """The new logits, from the old ones; with a gradient for the images, if they are given."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.model.eval()
        return self


def inner(model: nn.Module) -> nn.Module:
    """The network that a transform is of, or the model itself."""
    return model.model if isinstance(model, LogitTransform) else model


class Claiming(nn.Module):
    """A g that says what it was told, whatever it is shown, and is certain of it: no attack on a g does more.

    What stands against every claim stands with any g.
    """

    claims: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("claims", torch.zeros(0, dtype=torch.long))
        self.training = False

    def tell(self, claims: Tensor) -> None:
        """One class per image of the next batch."""
        if claims.shape == self.claims.shape and claims.device == self.claims.device:
            self.claims.copy_(claims)  # in place, for those who have recorded where it is
        else:
            self.claims = claims.clone()

    def forward(self, images: Tensor) -> Tensor:
        certain = images.new_full((len(images), self.num_classes), NEVER)
        return certain.scatter(1, self.claims[:, None], 0.0)


class Hardmax(LogitTransform):
    """A classifier that is certain of its prediction: logit `scale` for that class and 0 for the others.

    Finite, and yet its softmax is one-hot to the last bit. On a tie the prediction is argmax's. The gradient is zero,
    so attack what it is part of, never this alone.
    """

    def __init__(self, model: nn.Module, scale: float = 1e4) -> None:
        if not 1e3 <= scale <= 6e4:
            raise ValueError(
                f"expected a scale in [1e3, 6e4], got {scale}: "
                "below, softmax is not one-hot; above, half precision overflows"
            )
        super().__init__(model)
        self.scale = scale

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        hard = torch.zeros_like(logits).scatter(1, logits.argmax(1, keepdim=True), self.scale)
        # argmax would make a confident prediction of a NaN.
        hard = hard.masked_fill(logits.isnan().any(1, keepdim=True), torch.nan)
        return hard if images is None else with_zero_gradient(hard, images)


class Nonlinear(LogitTransform):
    """h with margins that grow where they are large already (MixedNUTS): s sign(z) |z|^p of z = GELU(LN(h) + c).

    LN takes the mean from the `top` largest logits and divides by their standard deviation, so that the scale of h is
    nothing. A mixture needs a robust classifier that is sure when it is right under attack, and unsure when it
    is wrong without one; this widens the difference without training. The prediction is that of `model`, unless its
    logits are so low that GELU turns their order around.
    """

    def __init__(self, model: nn.Module, *, scale: float, power: float, shift: float, top: int = 250) -> None:
        if scale <= 0 or power <= 0:
            raise ValueError(f"expected a positive scale and power, got {scale} and {power}")
        super().__init__(model)
        self.scale, self.power, self.shift, self.top = scale, power, shift, top

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, "power": self.power, "shift": self.shift, "top": self.top}

    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        return nonlinear(logits, self.scale, self.power, self.shift, self.top)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, power={self.power:g}, shift={self.shift:g}"


def nonlinear(logits: Tensor, scale: float, power: float, shift: float, top: int = 250) -> Tensor:
    """The transform of `Nonlinear` alone, for logits at hand."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.topk(min(top, logits.shape[1])).values
    spread = largest.std(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).eps)
    risen = F.gelu((logits - largest.mean(1, keepdim=True)) / spread + shift)
    # |z|^p has no second derivative, and for p < 1 no first one, at zero.
    return scale * risen.sign() * risen.abs().clamp_min(1e-12) ** power
