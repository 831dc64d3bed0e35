"""The mixed classifier, eq. adap_sm_4, as a drop-in module from images to logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.formula import mix_logits
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer
from adaptive_smoothing.mixing.straight_through import StraightThrough, follow
from adaptive_smoothing.mixing.transforms import Hardmax, inner

NUMBERS = ("alpha_range", "alpha_scale", "alpha_shift", "standard_scale", "robust_scale")
# What a card says of one setting of the dial, and not of the networks.
OF_ONE_SETTING = ("figures", "wanted")


class MixedOutput(NamedTuple):
    """What a mixed classifier says of a batch: logits [N, C], the alpha each image was given [N], and the logits of g
    and h with their scales.
    """

    logits: Tensor
    alpha: Tensor
    g: Tensor
    h: Tensor


class MixedClassifier(BaseClassifiers):
    """log((1 - alpha) softmax(g) + alpha softmax(h)): the standard g at alpha = 0, the robust h at alpha = 1.

    `alpha` is a number, a tensor with one number per image, a module from images to one number per image, all in
    [0, 1], or a `Mixer`, whose score becomes sigmoid(alpha_scale * score + alpha_shift); `alpha_range` turns alpha
    into low + (high - low) * alpha. A scale multiplies a base classifier's logits. The `with_...` methods return views:
    other mixtures of the same networks. `card` is what is known of a mixture that was read from a folder.
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
        self.card: dict[str, Any] = {}
        numbers = (alpha_range, alpha_scale, alpha_shift, standard_scale, robust_scale)
        for name, number in zip(NUMBERS, numbers, strict=True):
            self.register_buffer(name, self.settle(number, name))
        if isinstance(alpha, nn.Module | nn.Parameter):
            self.alpha = alpha
        else:
            self.register_buffer("alpha", self.settle(alpha, "alpha"))
        self._check_numbers()
        if isinstance(alpha, Mixer):
            self.tap(alpha.standard_taps, alpha.robust_taps)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images).logits

    def mix(self, images: Tensor) -> MixedOutput:
        """The logits, the alpha that made them, and the logits that were mixed."""
        return self.weigh(self.base_outputs(images), images)

    def weigh(self, base_outputs: BaseOutputs, images: Tensor) -> MixedOutput:
        """What `mix` makes of the evidence, for somebody who has it already."""
        alpha, h = self._weighed(images, base_outputs)
        g, h = self.transformed(base_outputs.g, h, images)
        logits = mix_logits(g, h, alpha, standard_scale=self.standard_scale, robust_scale=self.robust_scale)
        return MixedOutput(logits, alpha, self.standard_scale * g, self.robust_scale * h)

    @property
    def learns_alpha(self) -> bool:
        """Whether alpha depends on the image: in a range without width it is the same for all, whatever learned it."""
        low, high = self.alpha_range.tolist()
        return isinstance(self.alpha, nn.Module) and low < high

    def gray_box(self) -> MixedClassifier:
        """A view whose alpha has no gradient: an attacker knows g and h but not the mixing network."""
        return self._view(GrayBoxMixture)

    def smooth(self) -> MixedClassifier:
        """What to take gradients from: a view in which a `Hardmax` lets its network's logits through, and a learned
        alpha has a gradient also where it is clipped."""
        standard, robust = (inner(base) if isinstance(base, Hardmax) else base for base in (self.standard, self.robust))
        return self._view(SmoothMixture if self.learns_alpha else None, standard=standard, robust=robust)

    def plain(self) -> MixedClassifier:
        """A view without transforms. A `Nonlinear` makes all unlikely classes alike; without it they differ."""
        return self._view(standard=inner(self.standard), robust=inner(self.robust))

    def with_alpha(self, alpha: float | Tensor | nn.Module) -> MixedClassifier:
        """A view with another alpha, spread over the same `alpha_range`."""
        return self._view(alpha=alpha)

    def with_alpha_range(self, low: float, high: float) -> MixedClassifier:
        """A view with another range, in place of the present one."""
        return self._view(alpha_range=(low, high))

    def with_scales(self, standard: float | Tensor = 1.0, robust: float | Tensor = 1.0) -> MixedClassifier:
        """A view with other scales, in place of the present ones."""
        return self._view(standard_scale=standard, robust_scale=robust)

    def with_sigmoid(self, scale: float | Tensor, shift: float | Tensor) -> MixedClassifier:
        """A view whose `Mixer` is read otherwise: alpha = sigmoid(scale * score + shift)."""
        return self._view(alpha_scale=scale, alpha_shift=shift)

    def with_standard(self, standard: nn.Module) -> MixedClassifier:
        """A view with another g."""
        return self._view(standard=standard)

    def with_robust(self, robust: nn.Module) -> MixedClassifier:
        """A view with another h."""
        return self._view(robust=robust)

    def save_pretrained(self, folder: Path | str, *, hold: bool = False, card: Mapping[str, Any] | None = None) -> Path:
        """Write a folder that `from_pretrained` reads; with `hold` the base classifiers are inside. `card` is what is
        known of it; by default what was known when it was read."""
        from adaptive_smoothing.mixing import pretrained  # which needs this class

        return pretrained.save(self, folder, hold=hold, card=card)

    @classmethod
    def from_pretrained(
        cls,
        folder: Path | str,
        *,
        standard: nn.Module | None = None,
        robust: nn.Module | None = None,
        device: torch.device | str = "cpu",
    ) -> MixedClassifier:
        """The mixture in a folder, or of that name in the package or the zoo.

        `standard` and `robust` are for base classifiers that the folder cannot name: modules of one's own.
        """
        from adaptive_smoothing.mixing import pretrained  # which needs this class

        return pretrained.load(folder, standard=standard, robust=robust, device=device)

    def extra_repr(self) -> str:
        low, high = self.alpha_range.tolist()
        number = "" if isinstance(self.alpha, nn.Module) else f"alpha={_describe(self.alpha)}, "
        if isinstance(self.alpha, Mixer):
            number = f"alpha_scale={self.alpha_scale.item():g}, alpha_shift={self.alpha_shift.item():g}, "
        scales = f"standard_scale={self.standard_scale.item():g}, robust_scale={self.robust_scale.item():g}"
        return f"{number}alpha_range=({low:g}, {high:g}), {scales}"

    def _view(self, kind: type[MixedClassifier] | None = None, **changes: Any) -> MixedClassifier:
        names = ("standard", "robust", "alpha", *NUMBERS)
        view = (kind or type(self))(**{name: getattr(self, name) for name in names} | changes)
        if [*map(id, view.children())] == [*map(id, self.children())]:
            view.card = {name: fact for name, fact in self.card.items() if name not in OF_ONE_SETTING}
        return view

    def _weighed(self, images: Tensor, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        """Alpha inside its range, one per image, and the logits that stand for h."""
        if not isinstance(self.alpha, Mixer):
            return self._in_range(self._raw_alpha(images), images), base_outputs.h
        score, h = self.alpha(base_outputs)
        return self._dialled(score, images), h

    def _dialled(self, score: Tensor, images: Tensor) -> Tensor:
        return self._in_range(torch.sigmoid(self.alpha_scale * score + self.alpha_shift), images)

    def _in_range(self, alpha: Tensor, images: Tensor) -> Tensor:
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
        if not self.alpha_shift.isfinite():
            raise ValueError(f"expected a finite alpha_shift, got {self.alpha_shift.item()}; 0 leaves the score alone")
        for name in ("standard_scale", "robust_scale", "alpha_scale"):
            scale = getattr(self, name).item()
            if not 0 < scale < float("inf"):
                raise ValueError(f"expected a positive, finite {name}, got {scale}; 1 changes nothing")


class GrayBoxMixture(MixedClassifier):
    """Without a gradient of alpha."""

    def _weighed(self, images: Tensor, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        alpha, h = super()._weighed(images, base_outputs)
        return alpha.detach(), h


class SmoothMixture(MixedClassifier):
    """With a gradient of alpha where clipping or saturation takes it away; the values are the same.

    That of a `Mixer` is the gradient of its score, however steep the dial is: there is one of h to be followed as well.
    """

    def _weighed(self, images: Tensor, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        with StraightThrough(len(images)):
            return super()._weighed(images, base_outputs)

    def _dialled(self, score: Tensor, images: Tensor) -> Tensor:
        return follow(score, super()._dialled(score.detach(), images))


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
