"""Views of a mixed classifier that attacks use, and predicates for the attacks that apply to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers, Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, without_transform


@dataclass(frozen=True)
class Base:
    """One base classifier of a mixture, `standard` or `robust`, without its transform."""

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
        if isinstance(model.alpha, Mixer):  # its h can differ from the mixture's, so it stays in place
            return model.with_alpha_range(self.alpha, self.alpha)
        return model.with_alpha_range(0.0, 1.0).with_alpha(self.alpha)


@dataclass(frozen=True)
class GrayBox:
    """The mixture without the gradient of alpha."""

    def __call__(self, model: nn.Module) -> nn.Module:
        return model.gray_box() if isinstance(model, MixedClassifier) else model


@dataclass(frozen=True)
class SmoothedSurrogate:
    """The mixture without Hardmax, and with a gradient of alpha where alpha is clipped."""

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        return model.smooth()


@dataclass(frozen=True)
class WithoutTransforms:
    """The mixture without transforms, so that the gradients of all targets differ."""

    alpha: float | None = None  # one value for all images; None: the model's, with a gradient where it is clipped

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        plain = model.plain()
        if self.alpha is not None:
            return AtAlpha(self.alpha)(plain)
        return plain.smooth() if learns_alpha(model) else plain


def is_mixture(model: nn.Module) -> bool:
    """Whether the model has a g and an h, however it mixes them."""
    return isinstance(model, BaseClassifiers)


def mixes_probabilities(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier)


def has_differentiable_standard(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and not isinstance(model.standard, Hardmax)


def learns_alpha(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and model.learns_alpha


def has_hardmax(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and Hardmax in (type(model.standard), type(model.robust))


def has_hardmax_or_learned_alpha(model: nn.Module) -> bool:
    """Whether gradients can vanish: in a Hardmax, or where a learned alpha is close to 0 or 1."""
    return has_hardmax(model) or learns_alpha(model)


def has_transformed_robust(model: nn.Module) -> bool:
    """Whether h has a nonlinear transform, after which all unlikely classes look alike to an attack."""
    return isinstance(model, MixedClassifier) and isinstance(model.robust, Nonlinear)


def learns_alpha_with_transformed_robust(model: nn.Module) -> bool:
    return learns_alpha(model) and has_transformed_robust(model)


def lacks(needs: Callable[[nn.Module], bool]) -> Callable[[nn.Module], bool]:
    """Return the opposite predicate."""
    return lambda model: not needs(model)


lacks_learned_alpha = lacks(learns_alpha)
