"""The methods of certification by name, each for the classifiers it is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from adaptive_smoothing.certification.lipschitz import Lipschitz, LipschitzLogits
from adaptive_smoothing.certification.local_lipschitz import LocalEstimate
from adaptive_smoothing.certification.sampling import Sampler
from adaptive_smoothing.certification.smoothing import Smoothing
from adaptive_smoothing.certification.target import CertificationTarget, NotCertifiableError
from adaptive_smoothing.certification.telling import Tell, nothing
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.threat import NORMS

# More than float64 is off by where a radius is multiplied by a root, and what is taken from it when it is divided.
ROUNDING = 3e-9


class Certifier(Protocol):
    """Finds a radius in `norm` for each image."""

    @property
    def name(self) -> str: ...

    @property
    def norm(self) -> str: ...

    @property
    def facts(self) -> dict[str, Any]:
        """How it goes about it, as plain data."""

    def certify(self, images: Tensor, index: Tensor, tell: Tell = nothing) -> dict[str, np.ndarray]:
        """Columns of one entry per image: robust_class (what h says), lower and upper (bounds on the probability of
        that and of any other class), radius, estimate, samples, probabilities."""


def make_certifier(
    parts: CertificationTarget, kind: str | None, norm: str | None, options: Mapping[str, Any], *, pixels: int = 1
) -> Certifier:
    """The method of this name, or the one that h is made for. A wanted `radius` in Linf is so much longer in L2 as an
    image of so many `pixels` makes it."""
    if norm is not None and norm not in NORMS:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {norm!r}")
    kind = kind or natural_method(parts.robust)
    if kind not in METHODS:
        raise ValueError(f"expected a method among {', '.join(METHODS)}, got {kind!r}")
    options = dict(options)
    if norm == "Linf" and options.get("radius") is not None and kind == "smoothing":
        options["radius"] = options["radius"] * math.sqrt(pixels) * (1 + ROUNDING)
    return METHODS[kind](parts, norm, options)


def natural_method(robust: nn.Module) -> str:
    if isinstance(robust, SmoothedClassifier):
        return "smoothing"
    if isinstance(robust, LipschitzLogits):
        return "lipschitz"
    raise NotCertifiableError(
        f"expected a smoothed classifier or a network with a proven Lipschitz constant as h, got a "
        f"{type(robust).__name__}: smooth it with ads.SmoothedClassifier(h, sigma), or have an estimate: method='local'"
    )


def _smoothing(parts: CertificationTarget, norm: str | None, options: dict[str, Any]) -> Smoothing:
    h = parts.robust
    if not isinstance(h, SmoothedClassifier):
        raise NotCertifiableError(
            f"expected a smoothed classifier as h, got a {type(h).__name__}: ads.SmoothedClassifier(h, sigma=0.5)"
        )
    if parts.scale != 1:
        raise NotCertifiableError(
            f"expected logits of h as they are, got them times {parts.scale:g}: a mean of probabilities that is scaled "
            "afterwards is no mean any more; scale the logits of the base inside of the SmoothedClassifier"
        )
    known = {field.name for field in fields(Sampler)} - {"base", "sigma", "hard"}
    sampler = Sampler(h.base, h.sigma, h.hard, **{name: options.pop(name) for name in known & set(options)})
    return Smoothing(sampler=sampler, alpha=parts.alpha, **_known(Smoothing, options, known))


def _lipschitz(parts: CertificationTarget, norm: str | None, options: dict[str, Any]) -> Lipschitz:
    if not isinstance(parts.robust, LipschitzLogits):
        raise NotCertifiableError(
            f"expected a network that proves its Lipschitz constant as h, got a {type(parts.robust).__name__}: it "
            "needs a method pairwise_lipschitz, as the architecture lipschitz_net has; method='local' gives an estimate"
        )
    return Lipschitz(robust=parts.robust, alpha=parts.alpha, scale=parts.scale, **_known(Lipschitz, options))


def _local(parts: CertificationTarget, norm: str | None, options: dict[str, Any]) -> LocalEstimate:
    if isinstance(parts.robust, Hardmax) or (isinstance(parts.robust, SmoothedClassifier) and parts.robust.hard):
        raise NotCertifiableError(
            "expected an h with a gradient to climb, got votes, which have none: estimate with soft ones, hard=False"
        )
    threat = NORMS[norm or "Linf"](options.pop("eps", 8 / 255))
    known = _known(LocalEstimate, options, {"eps"})
    return LocalEstimate(robust=parts.robust, threat=threat, alpha=parts.alpha, scale=parts.scale, **known)


def _known(method: type, options: dict[str, Any], more: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """The options, if the method has them."""
    own = {field.name for field in fields(method)} - {"robust", "sampler", "alpha", "scale", "threat"} | more
    for name in set(options) - own:
        raise TypeError(f"expected an option of the method, got {name!r}: it takes {', '.join(sorted(own))}")
    return options


METHODS: dict[str, Callable[[CertificationTarget, str | None, dict[str, Any]], Any]] = {
    "smoothing": _smoothing,
    "lipschitz": _lipschitz,
    "local": _local,
}
