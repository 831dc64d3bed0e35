"""Threat models: the perturbations of an image that an attacker may use.

A threat is a norm and a radius `eps`: one number for all images, or a tensor with one radius per image. Everything that
differs between norms is here, so that each attack is written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real

import torch
from torch import Tensor


def column(values: Tensor, images: Tensor) -> Tensor:
    """Return numbers of the leading dimensions of `images`, such as one per image, shaped to broadcast against it."""
    return values.view(*values.shape, *[1] * (images.dim() - values.dim()))


def per_image(value: float | Tensor, images: Tensor) -> float | Tensor:
    """Return the `column` of one number per image; a plain number is returned unchanged."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.shape != images.shape[:1]:
        raise ValueError(f"expected one radius per image ({len(images)}), got a tensor of shape {tuple(value.shape)}")
    return column(value.to(images), images)


def selected(value: float | Tensor, which: Tensor | slice) -> float | Tensor:
    """Return the numbers of a selection of the images; a plain number is returned unchanged."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value[which.to(value.device) if isinstance(which, Tensor) else which]


@dataclass(frozen=True)
class Threat(ABC):
    """All perturbations of norm at most `eps` that keep the image in [0, 1].

    Args:
        eps: the radius: one number for all images, or a tensor with one radius per image.
    """

    eps: float | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.eps, bool) or not isinstance(self.eps, Real | Tensor):
            hint = f"write {self.norm}(8 / 255), without quotes, or pass a tensor with one radius per image"
            raise TypeError(f"expected eps as a number or a tensor, got {self.eps!r}: {hint}")
        smallest, largest = self._extremes()
        if largest == float("inf"):
            raise ValueError(f"expected a finite eps, got {largest}: images in [0, 1] are closer than that")
        if not smallest >= 0:
            raise ValueError(f"expected eps >= 0, got {smallest}; for images in [0, 1] the usual Linf radius is 8/255")

    def _extremes(self) -> tuple[float, float]:
        """Return the smallest and the largest radius, or zeros on an accelerator, because to read them is to wait."""
        if not isinstance(self.eps, Tensor):
            return self.eps, self.eps
        if self.eps.device.type != "cpu" or not self.eps.numel():
            return 0.0, 0.0
        return self.eps.min().item(), self.eps.max().item()

    @property
    def norm(self) -> str:
        """The name of the norm: Linf or L2."""
        return type(self).__name__

    def with_eps(self, eps: float | Tensor) -> Threat:
        """Return the same norm with another radius."""
        return replace(self, eps=eps)

    def check_count(self, images: int) -> None:
        """Raise an error if there is one radius per image, but not for this number of images."""
        if isinstance(self.eps, Tensor) and self.eps.dim() and self.eps.shape != (images,):
            found = f"a tensor of shape {tuple(self.eps.shape)}"
            raise ValueError(f"expected one radius, or one per image ({images}), got {found}: leave out or add radii")

    def take(self, which: Tensor | slice) -> Threat:
        """Return the threat for a selection of the images."""
        return self.with_eps(selected(self.eps, which))

    def project(self, adversarial: Tensor, images: Tensor) -> Tensor:
        """Return `adversarial` projected into the ball around `images`, then clipped to [0, 1]."""
        return (images + self.clip(adversarial - images)).clamp(0, 1)

    @abstractmethod
    def clip(self, delta: Tensor) -> Tensor:
        """Return a perturbation projected to norm at most eps."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the direction of unit norm in which a linear function with this gradient increases the most."""

    @abstractmethod
    def dual_norm(self, gradient: Tensor) -> Tensor:
        """Return the dual norm of each image's gradient: the largest increase by a step of unit norm."""

    @abstractmethod
    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        """Return the norm of the perturbation of each image."""

    @abstractmethod
    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a random perturbation inside the ball."""

    @abstractmethod
    def surface_delta(self, uniform: Tensor) -> Tensor:
        """Return a perturbation of norm eps from random numbers in [0, 1) of the shape of the images."""

    @abstractmethod
    def pace(self, normal: Tensor) -> Tensor:
        """Return how fast each pixel moves on the shortest path to a plane with this normal, up to a common factor."""


@dataclass(frozen=True)
class Linf(Threat):
    """Perturbations that change every pixel by at most eps.

    Args:
        eps: the radius, in the scale of images in [0, 1]: one number, or a tensor with one radius per image.

    Examples:
        >>> ads.Linf(8 / 255).norm
        'Linf'
        >>> ads.Linf(0.1).project(torch.ones(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)).max()  # the nearest allowed image
        tensor(0.1000)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if (largest := self._extremes()[1]) > 1:
            raise ValueError(f"expected eps in [0, 1], as images are, got {largest:g}; did you mean {largest:g}/255?")

    def clip(self, delta: Tensor) -> Tensor:
        eps = per_image(self.eps, delta)
        return torch.minimum(torch.maximum(delta, -eps), eps) if isinstance(eps, Tensor) else delta.clamp(-eps, eps)

    def steepest(self, gradient: Tensor) -> Tensor:
        # sign(NaN) is 0, which would stop the attack and look like robustness.
        return gradient.sign().where(~gradient.isnan(), gradient)

    def dual_norm(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).abs().sum(1)

    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        return (adversarial - images).flatten(1).abs().amax(1)

    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return (2 * uniform - 1) * per_image(self.eps, images)

    def surface_delta(self, uniform: Tensor) -> Tensor:
        delta = 2 * uniform - 1
        largest = delta.flatten(1).abs().amax(1).clamp_min(torch.finfo(delta.dtype).tiny)
        return delta / per_image(largest, delta) * per_image(self.eps, delta)

    def pace(self, normal: Tensor) -> Tensor:
        return (normal != 0).to(normal.dtype)


@dataclass(frozen=True)
class L2(Threat):
    """Perturbations of Euclidean norm at most eps.

    Args:
        eps: the radius: one number, or a tensor with one radius per image.

    Examples:
        >>> ads.L2(0.5).distance(torch.full((1, 3, 2, 2), 0.1), torch.zeros(1, 3, 2, 2))
        tensor([0.3464])
    """

    def clip(self, delta: Tensor) -> Tensor:
        return delta * (per_image(self.eps, delta) / _length(delta)).clamp(max=1)

    def steepest(self, gradient: Tensor) -> Tensor:
        # Scaled by the largest entry first: the squares of tiny gradients would underflow.
        largest = gradient.flatten(1).abs().amax(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        scaled = gradient / column(largest, gradient)
        return scaled / _length(scaled)

    def dual_norm(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).norm(dim=1)

    def distance(self, adversarial: Tensor, images: Tensor) -> Tensor:
        return (adversarial - images).flatten(1).norm(dim=1)

    def random_delta(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return points uniform in the ball: a uniform direction, and a radius whose d-th power is uniform."""
        direction = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        uniform = torch.rand(images.shape[0], generator=generator, device=images.device, dtype=images.dtype)
        radius = per_image(uniform ** (1 / images[0].numel()), images)
        return self.steepest(direction) * radius * per_image(self.eps, images)

    def surface_delta(self, uniform: Tensor) -> Tensor:
        # Moved halfway to the next of the 2^24 numbers, so that neither end becomes infinite.
        return self.steepest(torch.erfinv(2 * uniform - 1 + 2.0**-24)) * per_image(self.eps, uniform)

    def pace(self, normal: Tensor) -> Tensor:
        return normal.abs()


def _length(delta: Tensor) -> Tensor:
    """Return the Euclidean norm of each image, shaped to broadcast and never zero."""
    return column(delta.flatten(1).norm(dim=1).clamp_min(torch.finfo(delta.dtype).tiny), delta)


NORMS: dict[str, type[Threat]] = {"Linf": Linf, "L2": L2}


def check_threat(threat: object) -> None:
    """Raise an error for anything but a threat with a radius, for example for the class of one."""
    if not isinstance(threat, Threat):
        found = f"the class {threat.__name__}" if isinstance(threat, type) else repr(threat)
        raise TypeError(f"expected a threat such as ads.Linf(8 / 255), got {found}: give the norm and the radius")


def parse_threat(text: str) -> Threat:
    """Return the threat that a text such as `Linf:8/255` or `l2:0.5` names."""
    norm, _, radius = text.partition(":")
    kinds = {known.lower(): kind for known, kind in NORMS.items()}
    try:
        if norm.strip().lower() not in kinds:
            raise ValueError(f"the norm must be one of {', '.join(NORMS)}")
        return kinds[norm.strip().lower()](parse_number(radius))
    except ValueError as error:
        raise ValueError(f"expected a threat such as Linf:8/255 or L2:0.5, got {text!r}: {error}") from error


def threat_title(threat: Threat) -> str:
    """Return the norm and the radius, for example "Linf 8/255"."""
    if isinstance(threat.eps, Tensor) and threat.eps.numel() > 1:
        return f"{threat.norm} with one radius per image"
    return f"{threat.norm} {radius_text(threat.norm, float(threat.eps))}"


def radius_text(norm: str, radius: float) -> str:
    """Return a radius as people write it: `8/255` for a whole number of levels in Linf, `0.5` otherwise."""
    levels = 255 * radius
    whole = norm == "Linf" and 0 < radius < 1 and abs(levels - round(levels)) < 1e-6
    return f"{levels:.0f}/255" if whole else f"{radius:.4g}"


def parse_number(text: str | float) -> float:
    """Return a text such as `8/255` or `0.031`, or a number, as a float."""
    try:
        return float(Fraction(text.replace(" ", ""))) if isinstance(text, str) else float(text)
    except (ValueError, ZeroDivisionError) as error:
        found = repr(text) if text else "nothing"
        raise ValueError(f"expected a number such as 8/255 or 0.03, got {found}") from error
