"""The mixed classifier, eq. adap_sm_4, as a drop-in module from images to logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer
from adaptive_smoothing.mixing.formula import mix_logits
from adaptive_smoothing.mixing.mixture_format import NUMBERS
from adaptive_smoothing.mixing.storable import StorableMixture
from adaptive_smoothing.mixing.transforms import Hardmax, without_transform
from adaptive_smoothing.models.origin import origin

# The entries of a card that are valid for one operating point only.
OPERATING_POINT_FACTS = ("figures", "wanted")


class MixedOutput(NamedTuple):
    """Outputs of a mixed classifier for a batch: logits [N, C], alpha [N], and the scaled logits of g and h [N, C]."""

    logits: Tensor
    alpha: Tensor
    g: Tensor
    h: Tensor


class MixedClassifier(StorableMixture):
    """log((1 - alpha) softmax(g) + alpha softmax(h)): the standard g at alpha = 0, the robust h at alpha = 1.

    It is a module from images in [0, 1] to logits. The `with_...` methods return views: other mixtures of the same
    networks.

    Args:
        standard: the accurate classifier g.
        robust: the robust classifier h.
        alpha: a number in [0, 1], a tensor with one number per image, a module from images to one number per image, or
            a `Mixer`, whose score becomes sigmoid(alpha_scale * score + alpha_shift).
        alpha_range: (low, high); alpha becomes low + (high - low) * alpha.
        standard_scale, robust_scale: multiply the logits of a base classifier.
        alpha_scale, alpha_shift: the numbers in the formula of alpha for a `Mixer`.

    Examples:
        >>> mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.85)
        >>> mixed(images).shape
        torch.Size([4, 10])
        >>> mixed.mix(images).alpha
        tensor([0.8500, 0.8500, 0.8500, 0.8500])
        >>> mixed.with_alpha(0.5).alpha
        tensor(0.5000)
    """

    alpha: Tensor | nn.Module
    alpha_range: Tensor
    alpha_scale: Tensor
    alpha_shift: Tensor
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
        alpha_scale: float | Tensor = 1.0,
        alpha_shift: float | Tensor = 0.0,
    ) -> None:
        super().__init__(standard, robust)
        numbers = (alpha_range, alpha_scale, alpha_shift, standard_scale, robust_scale)
        for name, number in zip(NUMBERS, numbers, strict=True):
            self.register_buffer(name, self.as_tensor(number, name))
        if isinstance(alpha, nn.Module | nn.Parameter):
            self.alpha = alpha
        else:
            self.register_buffer("alpha", self.as_tensor(alpha, "alpha"))
        self._check_numbers()
        if isinstance(alpha, Mixer):
            self.tap(alpha.standard_taps, alpha.robust_taps)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images).logits

    def mix(self, images: Tensor) -> MixedOutput:
        """Return the logits, the alpha of each image, and the logits that were mixed."""
        return self.combine(self.base_outputs(images), images)

    def combine(self, base_outputs: BaseOutputs, images: Tensor) -> MixedOutput:
        """Return the same as `mix`, from base outputs of these images that were computed before."""
        alpha, h = self._alpha_and_h(images, base_outputs)
        g, h = self.transformed(base_outputs.g, h, images)
        logits = mix_logits(g, h, alpha, standard_scale=self.standard_scale, robust_scale=self.robust_scale)
        return MixedOutput(logits, alpha, self.standard_scale * g, self.robust_scale * h)

    @property
    def learns_alpha(self) -> bool:
        """Whether alpha depends on the image. It does not if its range has no width."""
        low, high = self.alpha_range.tolist()
        return isinstance(self.alpha, nn.Module) and low < high

    @property
    def moved_by(self) -> str | None:
        """The name of the number that moves the mixture between g and h, or None for an alpha module without one."""
        if isinstance(self.alpha, Mixer):
            return "alpha_shift"
        return None if isinstance(self.alpha, nn.Module) else "alpha"

    def gray_box(self) -> MixedClassifier:
        """Return a view whose alpha has no gradient: the attacker knows g and h but not the mixer."""
        return self._view(GrayBoxMixture)

    def smooth(self) -> MixedClassifier:
        """Return a view for gradients, without `Hardmax`, whose alpha has the gradient of the score of its `Mixer`."""
        bases = {"standard": self.standard, "robust": self.robust}
        soft = {role: base.model if isinstance(base, Hardmax) else base for role, base in bases.items()}
        return self._view(SmoothMixture if self.learns_alpha else None, **soft)

    def plain(self) -> MixedClassifier:
        """Return a view without transforms: `Nonlinear` gives all unlikely classes nearly the same logit."""
        return self._view(standard=without_transform(self.standard), robust=without_transform(self.robust))

    def with_alpha(self, alpha: float | Tensor | nn.Module) -> MixedClassifier:
        """Return a view with another alpha and the same `alpha_range`."""
        return self._view(alpha=alpha)

    def with_alpha_range(self, low: float, high: float) -> MixedClassifier:
        """Return a view with another range of alpha."""
        return self._view(alpha_range=(low, high))

    def with_scales(self, standard: float | Tensor = 1.0, robust: float | Tensor = 1.0) -> MixedClassifier:
        """Return a view with other scales of the logits."""
        return self._view(standard_scale=standard, robust_scale=robust)

    def with_sigmoid(self, scale: float | Tensor, shift: float | Tensor) -> MixedClassifier:
        """Return a view with alpha = sigmoid(scale * score + shift) for the score of its `Mixer`."""
        return self._view(alpha_scale=scale, alpha_shift=shift)

    def with_standard(self, standard: nn.Module) -> MixedClassifier:
        """Return a view with another g."""
        return self._view(standard=standard)

    def with_robust(self, robust: nn.Module) -> MixedClassifier:
        """Return a view with another h."""
        return self._view(robust=robust)

    def _view(self, kind: type[MixedClassifier] | None = None, **changes: Any) -> MixedClassifier:
        """Return a mixture of class `kind` with changed arguments. If the networks are the same, it keeps the card."""
        view = (kind or type(self))(**self._arguments() | changes)
        if [*map(id, view.children())] == [*map(id, self.children())]:
            view.card = {name: fact for name, fact in self.card.items() if name not in OPERATING_POINT_FACTS}
        return view

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("standard", "robust", "alpha", *NUMBERS)}

    def __repr__(self) -> str:
        low, high = self.alpha_range.tolist()
        parts = [f"standard={_base_repr(self.standard)}, robust={_base_repr(self.robust)}"]
        parts.append(f"alpha={_alpha_repr(self.alpha)}")
        if isinstance(self.alpha, Mixer):
            parts.append(f"alpha_scale={self.alpha_scale.item():g}, alpha_shift={self.alpha_shift.item():g}")
        parts.append(f"alpha_range=({low:g}, {high:g}), standard_scale={self.standard_scale.item():g}")
        return f"{type(self).__name__}({', '.join(parts)}, robust_scale={self.robust_scale.item():g})"

    def _alpha_and_h(self, images: Tensor, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        """Return alpha inside its range, one per image, and the logits to mix as those of h."""
        if isinstance(self.alpha, Mixer):
            score, h = self.alpha(base_outputs)
            return self._alpha_from_score(score, images), h
        alpha, hint = self.alpha, "for another batch pass its own alphas to with_alpha"
        if isinstance(alpha, nn.Module):
            alpha, hint = alpha(images), "end the alpha module with .squeeze(1) or .mean((1, 2, 3))"
            if not isinstance(alpha, Tensor) or alpha.dim() == 0:
                found = f"{alpha!r}: return a tensor of shape [{len(images)}]"
                raise TypeError(f"expected a tensor with one alpha per image from the alpha module, got {found}")
        if alpha.dim() and alpha.shape != images.shape[:1]:
            raise ValueError(f"expected one alpha per image, shape [{len(images)}], got {list(alpha.shape)}; {hint}")
        return self._in_range(alpha, images), base_outputs.h

    def _alpha_from_score(self, score: Tensor, images: Tensor) -> Tensor:
        return self._in_range(torch.sigmoid(self.alpha_scale * score + self.alpha_shift), images)

    def _in_range(self, alpha: Tensor, images: Tensor) -> Tensor:
        alpha = alpha.to(images.device, torch.promote_types(alpha.dtype, torch.float32))
        # Reading the values of a module would wait for the device. Values outside [0, 1] would leave the range that
        # certificates rely on, so they become NaN, which every evaluation rejects.
        alpha = alpha.masked_fill(~((alpha >= 0) & (alpha <= 1)), torch.nan)
        low, high = self.alpha_range.to(alpha)
        # lerp stays in [low, high] to the last bit, and returns alpha itself for the range (0, 1).
        return torch.lerp(low, high, alpha).expand(images.shape[0])

    def _check_numbers(self) -> None:
        if not isinstance(self.alpha, nn.Module):
            if self.alpha.dim() > 1:
                raise ValueError(f"expected alpha as one number or one per image, got shape {list(self.alpha.shape)}")
            if not ((self.alpha >= 0) & (self.alpha <= 1)).all():
                expected = "expected alpha in [0, 1] (0 is the standard, 1 the robust classifier)"
                hint = "convert a gamma with alpha = gamma / (1 + gamma)"
                raise ValueError(f"{expected}, got {_alpha_repr(self.alpha)}; {hint}")
        if self.alpha_range.shape != (2,):
            raise ValueError(f"expected alpha_range as (low, high), got {self.alpha_range.tolist()}: pass two numbers")
        low, high = self.alpha_range.tolist()
        if not 0 <= low <= high <= 1:
            raise ValueError(f"expected an alpha_range with 0 <= low <= high <= 1, got ({low:g}, {high:g})")
        if not self.alpha_shift.isfinite():
            raise ValueError(f"expected a finite alpha_shift, got {self.alpha_shift.item()}; 0 leaves the score alone")
        for name in ("standard_scale", "robust_scale", "alpha_scale"):
            if not 0 < (scale := getattr(self, name).item()) < float("inf"):
                raise ValueError(f"expected a positive, finite {name}, got {scale}; 1 changes nothing")


class GrayBoxMixture(MixedClassifier):
    """A mixture whose alpha has no gradient."""

    def _alpha_and_h(self, images: Tensor, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        alpha, h = super()._alpha_and_h(images, base_outputs)
        return alpha.detach(), h


class SmoothMixture(MixedClassifier):
    """A mixture with the same values, whose alpha has the gradient of the score of its `Mixer`.

    The slope of the sigmoid is left out: it is zero where the sigmoid saturates, and elsewhere it may be so large that
    it hides the gradient of h.
    """

    def _alpha_from_score(self, score: Tensor, images: Tensor) -> Tensor:
        return _StraightThrough.apply(score, super()._alpha_from_score(score.detach(), images))


class _StraightThrough(torch.autograd.Function):
    """The value `value` with the gradient of `score`."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _alpha_repr(alpha: Tensor | nn.Module) -> str:
    if isinstance(alpha, nn.Module):
        return f"{type(alpha).__name__}({alpha.extra_repr()})"
    if alpha.dim() == 0:
        return f"{alpha.item():g}"
    return f"{alpha.numel()} numbers from {alpha.min().item():g} to {alpha.max().item():g}"


def _base_repr(model: nn.Module) -> str:
    network = without_transform(model)
    name = (origin(network) or {"name": type(network).__name__})["name"]
    return name if network is model else f"{type(model).__name__}({name})"
