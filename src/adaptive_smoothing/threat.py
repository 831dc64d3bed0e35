"""Threat models: what an attacker may do to an image.

A threat is a norm and a radius `eps`, one number for all images or a tensor with one radius per image.
Everything that differs between norms lives in the small methods here; attacks are written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor


def per_image(value: float | Tensor, images: Tensor) -> float | Tensor:
    """Shape a number per image so that it broadcasts against NCHW images; a plain number passes through."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.shape != images.shape[:1]:
        raise ValueError(
            f"expected one radius per image ({images.shape[0]}), got a tensor of shape {tuple(value.shape)}"
        )
    return value.to(images).view(-1, *[1] * (images.dim() - 1))


@dataclass(frozen=True)
class Threat(ABC):
    """All perturbations of norm at most `eps` that keep the image in [0, 1]."""

    eps: float | Tensor

    def __post_init__(self) -> None:
        if not (smallest := self._extremes()[0]) >= 0:
            raise ValueError(f"expected eps >= 0, got {smallest}; for images in [0, 1] the usual Linf radius is 8/255")

    def _extremes(self) -> tuple[float, float]:
        """The smallest and the largest radius; zeros on an accelerator, where every attack step would wait for them."""
        if not isinstance(self.eps, Tensor):
            return self.eps, self.eps
        if self.eps.device.type != "cpu" or not self.eps.numel():
            return 0.0, 0.0
        return self.eps.min().item(), self.eps.max().item()

    @property
    def norm(self) -> str:
        return type(self).__name__

    def with_eps(self, eps: float | Tensor) -> Threat:
        return replace(self, eps=eps)

    def take(self, which: Tensor | slice) -> Threat:
        """The same threat for a selection of the images."""
        return self.with_eps(self.eps[which]) if isinstance(self.eps, Tensor) and self.eps.dim() else self

    def project(self, adversarial: Tensor, images: Tensor) -> Tensor:
        """Bring `adversarial` back into the ball around `images` and into the box [0, 1]."""
        return (images + self.clip(adversarial - images)).clamp(0, 1)

    @abstractmethod
    def clip(self, delta: Tensor) -> Tensor:
        """Bring a perturbation back to norm at most eps."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The unit-norm direction that increases a linear function the most."""

    @abstractmethod
    def dual_norm(self, gradient: Tensor) -> Tensor:
        """Dual norm over all but the leading dimension: how fast a unit step can climb."""

    @abstractmethod
    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        """Norm of the perturbation of each image."""

    @abstractmethod
    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A random perturbation inside the ball."""

    @abstractmethod
    def on_the_surface(self, uniform: Tensor) -> Tensor:
        """Numbers in [0, 1) shaped like images -> a random perturbation of norm eps."""

    @abstractmethod
    def pace(self, normal: Tensor) -> Tensor:
        """How fast each pixel moves along the shortest way to a plane with this normal, up to a common factor."""


@dataclass(frozen=True)
class Linf(Threat):
    """Every pixel may change by at most eps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (largest := self._extremes()[1]) > 1:
            raise ValueError(f"expected eps in [0, 1], as images are, got {largest:g}; did you mean {largest:g}/255?")

    def clip(self, delta: Tensor) -> Tensor:
        eps = per_image(self.eps, delta)
        if isinstance(eps, Tensor):
            return torch.minimum(torch.maximum(delta, -eps), eps)
        return delta.clamp(-eps, eps)

    def steepest(self, gradient: Tensor) -> Tensor:
        # sign(NaN) is 0, which would freeze the attack and pass for robustness.
        return gradient.sign().where(~gradient.isnan(), gradient)

    def dual_norm(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).abs().sum(1)

    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        return (adversarial - images).flatten(1).abs().amax(1)

    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return (2 * uniform - 1) * per_image(self.eps, images)

    def on_the_surface(self, uniform: Tensor) -> Tensor:
        delta = 2 * uniform - 1
        largest = delta.flatten(1).abs().amax(1).clamp_min(torch.finfo(delta.dtype).tiny)
        return delta / per_image(largest, delta) * per_image(self.eps, delta)

    def pace(self, normal: Tensor) -> Tensor:
        return (normal != 0).to(normal.dtype)


@dataclass(frozen=True)
class L2(Threat):
    """The perturbation as a vector may have Euclidean length at most eps."""

    def clip(self, delta: Tensor) -> Tensor:
        eps = per_image(self.eps, delta)
        length = _length(delta)
        return delta * (eps / length).clamp(max=1)

    def steepest(self, gradient: Tensor) -> Tensor:
        # Scaled by the largest entry first: squares of tiny gradients vanish.
        largest = gradient.flatten(1).abs().amax(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        scaled = gradient / largest.view(-1, *[1] * (gradient.dim() - 1))
        return scaled / _length(scaled)

    def dual_norm(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).norm(dim=1)

    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        return (adversarial - images).flatten(1).norm(dim=1)

    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Uniform in the ball: a uniform direction, and a radius whose d-th power is uniform."""
        direction = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        uniform = torch.rand(images.shape[0], generator=generator, device=images.device, dtype=images.dtype)
        radius = per_image(uniform ** (1 / images[0].numel()), images)
        return self.steepest(direction) * radius * per_image(self.eps, images)

    def on_the_surface(self, uniform: Tensor) -> Tensor:
        # Halfway between two of the 2^24 numbers, so that neither end becomes infinite.
        gauss = torch.erfinv(2 * uniform - 1 + 2.0**-24)
        return self.steepest(gauss) * per_image(self.eps, uniform)

    def pace(self, normal: Tensor) -> Tensor:
        return normal.abs()


def _length(delta: Tensor) -> Tensor:
    """Euclidean length per image, shaped to broadcast, never zero."""
    tiny = torch.finfo(delta.dtype).tiny
    return delta.flatten(1).norm(dim=1).clamp_min(tiny).view(-1, *[1] * (delta.dim() - 1))


NORMS: dict[str, type[Threat]] = {"Linf": Linf, "L2": L2}


def parse_threat(text: str) -> Threat:
    """`Linf:8/255` or `L2:0.5` -> a threat."""
    name, _, radius = text.partition(":")
    norms = {key.lower(): value for key, value in NORMS.items()}
    try:
        return norms[name.strip().lower()](parse_number(radius))
    except (KeyError, ValueError, ZeroDivisionError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise ValueError(f"expected a threat such as Linf:8/255 or L2:0.5, got {text!r}{reason}") from error


def parse_number(text: str | float) -> float:
    """`8/255`, `0.031` or a plain number -> float."""
    return float(Fraction(text.replace(" ", ""))) if isinstance(text, str) else float(text)


def make_threat(norm: str, eps: str) -> Threat:
    kinds = {known.lower(): kind for known, kind in NORMS.items()}
    if norm.lower() not in kinds:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {norm!r}: for example --norm L2 --eps 0.5")
    try:
        return kinds[norm.lower()](parse_number(eps))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"expected a radius such as 8/255 or 0.5, got {eps!r}: {error}") from error
