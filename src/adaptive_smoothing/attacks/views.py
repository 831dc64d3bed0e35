"""Views of a mixed classifier, from which attacks take gradients, and predicates on models.

A view is made by a function of the model, such as `GrayBox()`. Successes are confirmed on the model itself. Predicates
decide which attacks apply to a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers, Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, without_transform

MakeView = Callable[[nn.Module], nn.Module]
Predicate = Callable[[nn.Module], bool]


@dataclass(frozen=True)
class Base:
    """One base classifier of a mixture, `standard` or `robust`, without its transform."""

    role: str

    def __call__(self, model: nn.Module) -> nn.Module:
        if not isinstance(model, BaseClassifiers):
            found = type(model).__name__
            hint = "mix two models (G H --alpha), or choose a preset that attacks the model itself, such as standard"
            raise ValueError(f"expected a mixture, whose {self.role} classifier is attacked, got {found}: {hint}")
        return without_transform(getattr(model, self.role))


@dataclass(frozen=True)
class AtAlpha:
    """The mixture of the same networks with one alpha for all images."""

    alpha: float

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        if isinstance(model.alpha, Mixer):  # kept, because a mixer can also replace the logits of h
            return model.with_alpha_range(self.alpha, self.alpha)
        return model.with_alpha_range(0.0, 1.0).with_alpha(self.alpha)


@dataclass(frozen=True)
class GrayBox:
    """The mixture without the gradient of alpha."""

    def __call__(self, model: nn.Module) -> nn.Module:
        return model.gray_box() if isinstance(model, MixedClassifier) else model


@dataclass(frozen=True)
class SmoothedSurrogate:
    """The mixture without Hardmax, whose alpha has the gradient of the mixer's score (`MixedClassifier.smooth`)."""

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        return model.smooth()


@dataclass(frozen=True)
class WithoutTransforms:
    """The mixture without transforms, so that the gradients of different targets differ."""

    alpha: float | None = None  # one value for all images; None: that of the model, smoothed

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        plain = model.plain()
        if self.alpha is not None:
            return AtAlpha(self.alpha)(plain)
        return plain.smooth() if learns_alpha(model) else plain


@dataclass(frozen=True)
class Lacks:
    """The opposite predicate. Runs on several devices pickle it, which they could not do with a lambda."""

    predicate: Predicate

    def __call__(self, model: nn.Module) -> bool:
        return not self.predicate(model)


def is_mixture(model: nn.Module) -> bool:
    """Return whether the model has a g and an h, however it mixes them."""
    return isinstance(model, BaseClassifiers)


def mixes_probabilities(model: nn.Module) -> bool:
    """Return whether the model is the paper's mixture of probabilities."""
    return isinstance(model, MixedClassifier)


def has_differentiable_standard(model: nn.Module) -> bool:
    """Return whether g has a gradient, so that an attack can flip it."""
    return isinstance(model, MixedClassifier) and not isinstance(model.standard, Hardmax)


def learns_alpha(model: nn.Module) -> bool:
    """Return whether alpha depends on the image."""
    return isinstance(model, MixedClassifier) and model.learns_alpha


def has_hardmax(model: nn.Module) -> bool:
    """Return whether g or h has a Hardmax, whose gradient is zero."""
    return isinstance(model, MixedClassifier) and Hardmax in (type(model.standard), type(model.robust))


def has_hardmax_or_learned_alpha(model: nn.Module) -> bool:
    """Return whether gradients can vanish: in a Hardmax, or where a learned alpha is close to 0 or 1."""
    return has_hardmax(model) or learns_alpha(model)


def has_transformed_robust(model: nn.Module) -> bool:
    """Return whether h has a nonlinear transform, after which all unlikely classes look alike to an attack."""
    return isinstance(model, MixedClassifier) and isinstance(model.robust, Nonlinear)


def learns_alpha_with_transformed_robust(model: nn.Module) -> bool:
    """Return whether both `learns_alpha` and `has_transformed_robust` hold."""
    return learns_alpha(model) and has_transformed_robust(model)
