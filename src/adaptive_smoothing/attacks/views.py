"""Sides of a mixed classifier that an attack can be made on, and which models have them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.mixer import Mixer
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, without_transform


@dataclass(frozen=True)
class Base:
    """g or h of a mixture; of one that is transformed, the network inside."""

    role: str

    def __call__(self, model: nn.Module) -> nn.Module:
        if not isinstance(model, BaseClassifiers):
            raise ValueError(
                f"expected a mixture, whose {self.role} classifier is attacked, got {type(model).__name__}: mix two "
                "models (G H --alpha), or choose a preset that attacks the model itself, such as standard"
            )
        return without_transform(getattr(model, self.role))


@dataclass(frozen=True)
class AtAlpha:
    """The mixture of the same networks with one alpha for all images."""

    alpha: float

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        if isinstance(model.alpha, Mixer):  # which may have another h than the mixture's
            return model.with_alpha_range(self.alpha, self.alpha)
        return model.with_alpha_range(0.0, 1.0).with_alpha(self.alpha)


@dataclass(frozen=True)
class GrayBox:
    """The mixture without the gradient of alpha."""

    def __call__(self, model: nn.Module) -> nn.Module:
        return model.gray_box() if isinstance(model, MixedClassifier) else model


@dataclass(frozen=True)
class Smooth:
    """The mixture with a Hardmax taken out, and a gradient of alpha also where it is clipped."""

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        return model.smooth()


@dataclass(frozen=True)
class Plain:
    """The mixture without transforms, so that every target has a gradient of its own, and with a gradient of alpha also
    where it is clipped; or with one alpha for all images, if named."""

    alpha: float | None = None

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        plain = model.plain()
        if self.alpha is not None:
            return AtAlpha(self.alpha)(plain)
        return plain.smooth() if learns_alpha(model) else plain


def mixes(model: nn.Module) -> bool:
    return isinstance(model, BaseClassifiers)


def mixes_probabilities(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier)


def mixes_no_probabilities(model: nn.Module) -> bool:
    return not mixes_probabilities(model)


def has_differentiable_standard(model: nn.Module) -> bool:
    """A mixture whose g has a gradient."""
    return isinstance(model, MixedClassifier) and not isinstance(model.standard, Hardmax)


def lacks_differentiable_standard(model: nn.Module) -> bool:
    return not has_differentiable_standard(model)


def learns_alpha(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and model.learns_alpha


def lacks_learned_alpha(model: nn.Module) -> bool:
    return not learns_alpha(model)


def has_flat_part(model: nn.Module) -> bool:
    """A Hardmax, or a learned alpha: where it is almost 0 or 1 nothing moves it any more."""
    return has_hard_part(model) or learns_alpha(model)


def has_hard_part(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and any(
        isinstance(base, Hardmax) for base in (model.standard, model.robust)
    )


def has_steep_part(model: nn.Module) -> bool:
    """An h that is transformed: its likeliest class rises so steeply that the others are all alike beside it."""
    return isinstance(model, MixedClassifier) and isinstance(model.robust, Nonlinear)


def learns_beside_a_steep_part(model: nn.Module) -> bool:
    return learns_alpha(model) and has_steep_part(model)
