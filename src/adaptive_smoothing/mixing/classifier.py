"""The mixed classifier, eq. adap_sm_4, as a drop-in module from images to logits."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.alpha_views import Detached, Unclipped
from adaptive_smoothing.mixing.bases import BaseClassifiers
from adaptive_smoothing.mixing.formula import mix_logits
from adaptive_smoothing.models.contract import check_eval, check_logit_form, with_zero_gradient


class Mixture(NamedTuple):
    """What a mixed classifier says of a batch: logits [N, C], the alpha each image was given [N], the logits of g."""

    logits: Tensor
    alpha: Tensor
    g: Tensor


class MixedClassifier(BaseClassifiers):
    """log((1 - alpha) softmax(g) + alpha softmax(h)): the standard g at alpha = 0, the robust h at alpha = 1.

    `alpha` is a number, a tensor with one number per image, or a module from images to one number per image,
    all in [0, 1]; `alpha_range` turns it into low + (high - low) * alpha. A scale multiplies a base
    classifier's logits. The `with_...` methods return views: other mixtures of the same networks.
    """

    alpha: Tensor | nn.Module
    alpha_range: Tensor
    standard_scale: Tensor
    robust_scale: Tensor

    def __init__(
        self,
        standard: nn.Module,
        robust: nn.Module,
        alpha: float | Tensor | nn.Module,
        *,
        standard_scale: float | Tensor = 1.0,
        robust_scale: float | Tensor = 1.0,
        alpha_range: tuple[float, float] | Tensor = (0.0, 1.0),
    ) -> None:
        super().__init__(standard, robust)
        self.register_buffer("alpha_range", self.settle(alpha_range, "alpha_range"))
        self.register_buffer("standard_scale", self.settle(standard_scale, "standard_scale"))
        self.register_buffer("robust_scale", self.settle(robust_scale, "robust_scale"))
        if isinstance(alpha, nn.Module | nn.Parameter):
            self.alpha = alpha
        else:
            self.register_buffer("alpha", self.settle(alpha, "alpha"))
        self._check_numbers()

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images).logits

    def mix(self, images: Tensor) -> Mixture:
        """The logits, the alpha that made them, and those of g with their scale."""
        g, h = self.base_logits(images)
        alpha = self._alpha_per_image(images)
        scales = {"standard_scale": self.standard_scale, "robust_scale": self.robust_scale}
        return Mixture(mix_logits(g, h, alpha, **scales), alpha, self.standard_scale * g)

    def gray_box(self) -> MixedClassifier:
        """A view whose alpha has no gradient: an attacker knows g and h but not the mixing network."""
        alpha = self.alpha
        return self.with_alpha(Detached(alpha) if isinstance(alpha, nn.Module) else alpha.detach())

    def smooth(self) -> MixedClassifier:
        """What to take gradients from: a view in which a `Hardmax` lets its network's logits through, and a learned
        alpha has a gradient also where it is clipped."""
        standard, robust = (base.model if isinstance(base, Hardmax) else base for base in (self.standard, self.robust))
        alpha = Unclipped(self.alpha) if isinstance(self.alpha, nn.Module) else self.alpha
        return self._view(standard=standard, robust=robust, alpha=alpha)

    def with_alpha(self, alpha: float | Tensor | nn.Module) -> MixedClassifier:
        """A view with another alpha, spread over the same `alpha_range`."""
        return self._view(alpha=alpha)

    def with_alpha_range(self, low: float, high: float) -> MixedClassifier:
        """A view with another range, in place of the present one."""
        return self._view(alpha_range=(low, high))

    def with_scales(self, standard: float | Tensor = 1.0, robust: float | Tensor = 1.0) -> MixedClassifier:
        """A view with other scales, in place of the present ones."""
        return self._view(standard_scale=standard, robust_scale=robust)

    def extra_repr(self) -> str:
        low, high = self.alpha_range.tolist()
        number = "" if isinstance(self.alpha, nn.Module) else f"alpha={_describe(self.alpha)}, "
        scales = f"standard_scale={self.standard_scale.item():g}, robust_scale={self.robust_scale.item():g}"
        return f"{number}alpha_range=({low:g}, {high:g}), {scales}"

    def _view(self, **changes: Any) -> MixedClassifier:
        names = ("standard", "robust", "alpha", "alpha_range", "standard_scale", "robust_scale")
        return MixedClassifier(**{name: getattr(self, name) for name in names} | changes)

    def _alpha_per_image(self, images: Tensor) -> Tensor:
        alpha = self._raw_alpha(images)
        alpha = alpha.to(images.device, torch.promote_types(alpha.dtype, torch.float32))
        # To read a module's values would be to wait for the device. Outside [0, 1] they would leave the range
        # a certificate relies on, so they become NaN, which no evaluation takes for an answer.
        alpha = alpha.masked_fill(~((alpha >= 0) & (alpha <= 1)), torch.nan)
        low, high = self.alpha_range.to(alpha)
        # lerp keeps to [low, high] to the last bit, and to alpha itself where the range is (0, 1).
        return torch.lerp(low, high, alpha).expand(images.shape[0])

    def _raw_alpha(self, images: Tensor) -> Tensor:
        """Before `alpha_range`; one number, or one per image."""
        if not isinstance(self.alpha, nn.Module):
            _check_shape(self.alpha, images, "for another batch pass its own alphas to with_alpha")
            return self.alpha
        alpha = self.alpha(images)
        if not isinstance(alpha, Tensor) or alpha.dim() == 0:
            raise TypeError(f"expected a tensor with one alpha per image from the alpha module, got {alpha!r}")
        _check_shape(alpha, images, "end the alpha module with .squeeze(1) or .mean((1, 2, 3))")
        return alpha

    def _check_numbers(self) -> None:
        if not isinstance(self.alpha, nn.Module):
            _check_alpha(self.alpha.detach())
        if self.alpha_range.shape != (2,):
            raise ValueError(f"expected alpha_range as (low, high), got {self.alpha_range.tolist()}: pass two numbers")
        low, high = self.alpha_range.tolist()
        if not 0 <= low <= high <= 1:
            raise ValueError(f"expected an alpha_range with 0 <= low <= high <= 1, got ({low:g}, {high:g})")
        for name in ("standard_scale", "robust_scale"):
            scale = getattr(self, name).item()
            if not 0 < scale < float("inf"):
                raise ValueError(f"expected a positive, finite {name}, got {scale}; 1 leaves the logits alone")


class Hardmax(nn.Module):
    """A classifier that is certain of its prediction: logit `scale` for that class and 0 for the others.

    Finite, and yet its softmax is one-hot to the last bit. On a tie the prediction is argmax's. The gradient is zero,
    so attack what it is part of, never this alone. `train()` leaves `model` in eval mode.
    """

    def __init__(self, model: nn.Module, scale: float = 1e4) -> None:
        super().__init__()
        if not 1e3 <= scale <= 6e4:
            raise ValueError(
                f"expected a scale in [1e3, 6e4], got {scale}: "
                "below, softmax is not one-hot; above, half precision overflows"
            )
        check_eval(model)
        self.model = model
        self.scale = scale
        self.training = False

    @property
    def num_classes(self) -> int | None:
        return getattr(self.model, "num_classes", None)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.model(images)
        check_logit_form(logits, images)
        hard = torch.zeros_like(logits).scatter(1, logits.argmax(1, keepdim=True), self.scale)
        # argmax would make a confident prediction of a NaN.
        hard = hard.masked_fill(logits.isnan().any(1, keepdim=True), torch.nan)
        return with_zero_gradient(hard, images)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.model.eval()
        return self


def _check_shape(alpha: Tensor, images: Tensor, hint: str) -> None:
    if alpha.dim() != 0 and alpha.shape != images.shape[:1]:
        raise ValueError(f"expected one alpha per image, shape [{images.shape[0]}], got {list(alpha.shape)}; {hint}")


def _check_alpha(alpha: Tensor) -> None:
    if alpha.dim() > 1:
        raise ValueError(f"expected alpha as one number or one per image, got shape {list(alpha.shape)}")
    if not ((alpha >= 0) & (alpha <= 1)).all():
        raise ValueError(
            f"expected alpha in [0, 1] (0 is the standard, 1 the robust classifier), got {_describe(alpha)}; "
            "from a gamma, use ads.alpha_from_gamma"
        )


def _describe(alpha: Tensor) -> str:
    if alpha.dim() == 0:
        return f"{alpha.item():g}"
    return f"{alpha.numel()} numbers from {alpha.min().item():g} to {alpha.max().item():g}"
