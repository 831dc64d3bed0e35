"""Classifiers made from the logits of another one: `Hardmax` and the nonlinear transform of MixedNUTS."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.models.contract import check_eval, check_logit_form, with_zero_gradient


class LogitTransform(nn.Module, ABC):
    """A classifier whose logits are a function of those of `model`. `train()` leaves `model` in eval mode."""

    OPTIONS: ClassVar[tuple[str, ...]]  # names of the constructor's arguments, without the model

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_eval(model)
        self.model = model
        self.training = False

    @property
    def num_classes(self) -> int | None:
        """The number of classes that `model` declares, or None."""
        return getattr(self.model, "num_classes", None)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        check_logit_form(logits, images)
        return self.transform(logits, images)

    @property
    def options(self) -> dict[str, float]:
        """The arguments of the constructor, without the model."""
        return {name: getattr(self, name) for name in self.OPTIONS}

    @abstractmethod
    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        """Return the transformed logits, which have a gradient with respect to `images` if these are given."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.model.eval()
        return self


def without_transform(model: nn.Module) -> nn.Module:
    """Return the network inside a `LogitTransform`, or the model itself."""
    return model.model if isinstance(model, LogitTransform) else model


class Hardmax(LogitTransform):
    """The prediction of `model` with certainty: logit `scale` for the predicted class and 0 for the others.

    The logits are finite, and their softmax is one-hot to the last bit. Ties are resolved as argmax does. The gradient
    is zero: an attack needs a view without this transform (`MixedClassifier.smooth`).

    Args:
        model: the classifier.
        scale: the logit of the predicted class.

    Examples:
        >>> ads.Hardmax(g)(images).softmax(1).max(1).values
        tensor([1., 1., 1., 1.])
    """

    OPTIONS = ("scale",)

    def __init__(self, model: nn.Module, scale: float = 1e4) -> None:
        if not 1e3 <= scale <= 6e4:
            limits = "below, softmax is not one-hot; above, half precision overflows"
            raise ValueError(f"expected a scale in [1e3, 6e4], got {scale}: {limits}")
        super().__init__(model)
        self.scale = scale

    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        hard = torch.zeros_like(logits).scatter(1, logits.argmax(1, keepdim=True), self.scale)
        # argmax would turn a NaN into a confident prediction.
        hard = hard.masked_fill(logits.isnan().any(1, keepdim=True), torch.nan)
        return hard if images is None else with_zero_gradient(hard, images)


class Nonlinear(LogitTransform):
    """The transform of MixedNUTS: s sign(z) |z|^p with z = GELU(LN(h) + c), which enlarges large margins of h.

    LN subtracts the mean of the `top` largest logits and divides by their standard deviation. The transform widens the
    difference between the confidence of h where it is correct under attack and where it is incorrect on clean images.
    It keeps the prediction of `model`, except for logits so low that GELU reverses their order.

    Args:
        model: the classifier, usually h.
        scale, power, shift: s, p and c of the formula. `fit_nonlinear` chooses them.
        top: the number of largest logits that LN uses.

    Examples:
        >>> transformed = ads.Nonlinear(h, scale=1.0, power=4.0, shift=0.5)
        >>> bool((transformed(images).argmax(1) == h(images).argmax(1)).all())
        True
    """

    OPTIONS = ("scale", "power", "shift", "top")

    def __init__(self, model: nn.Module, *, scale: float, power: float, shift: float, top: int = 250) -> None:
        if not (0 < scale < math.inf and 0 < power < math.inf and math.isfinite(shift)):
            expected = "a positive scale, a positive power and a shift, all finite"
            raise ValueError(f"expected {expected}, got {scale}, {power} and {shift}")
        if not (top >= 2 and top % 1 == 0):
            raise ValueError(f"expected top as a whole number above 1, got {top}: one logit has no standard deviation")
        super().__init__(model)
        self.scale, self.power, self.shift, self.top = scale, power, shift, int(top)

    def transform(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        return nonlinear(logits, self.scale, self.power, self.shift, self.top)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, power={self.power:g}, shift={self.shift:g}"


# The transforms that can be stored with a mixture, by their names in files.
TRANSFORMS: dict[str, type[LogitTransform]] = {"hardmax": Hardmax, "nonlinear": Nonlinear}


def transform_name(model: LogitTransform) -> str | None:
    """Return the name of a transform in files, or None for a class of the user, which is stored as any other module."""
    return next((name for name, known in TRANSFORMS.items() if type(model) is known), None)


def nonlinear(logits: Tensor, scale: float, power: float, shift: float, top: int = 250) -> Tensor:
    """Return the transform of `Nonlinear` for given logits."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.topk(min(top, logits.shape[1])).values
    deviation = largest.std(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).eps)
    z = F.gelu((logits - largest.mean(1, keepdim=True)) / deviation + shift)
    # |z|^p has no second derivative, and for p < 1 no first one, at zero.
    return scale * z.sign() * z.abs().clamp_min(1e-12) ** power
