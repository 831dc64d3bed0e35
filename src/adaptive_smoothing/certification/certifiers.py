"""The methods of certification, and the classifiers that each of them can certify."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from adaptive_smoothing.certification import rounding
from adaptive_smoothing.certification.lipschitz import Lipschitz, LipschitzLogits
from adaptive_smoothing.certification.local_lipschitz import LocalEstimate
from adaptive_smoothing.certification.options import (
    METHODS,
    CertifyOptions,
    LipschitzOptions,
    LocalOptions,
    SmoothingOptions,
    check_method,
    method_of,
)
from adaptive_smoothing.certification.smoothing import Smoothing
from adaptive_smoothing.certification.target import CertificationTarget, NotCertifiableError
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.runs.progress import ProgressCallback, ignore_progress
from adaptive_smoothing.threat import NORMS


class Certifier(Protocol):
    """A method of certification: finds a radius in `norm` for each image."""

    @property
    def name(self) -> str: ...

    @property
    def norm(self) -> str: ...

    @property
    def facts(self) -> dict[str, Any]:
        """The settings of the method, as plain data for result.json."""

    def certify(
        self, images: Tensor, index: Tensor, progress: ProgressCallback = ignore_progress
    ) -> dict[str, np.ndarray]:
        """Return columns with one entry per image.

        They are: robust_class (that h predicts), lower (bound on its probability), upper (bound on the probability of
        any other class), radius, estimate, samples, probabilities.
        """


def choose_options(robust: nn.Module, method: str | None, options: CertifyOptions | None) -> CertifyOptions:
    """Return the given options, or the defaults of the method; without a method, of the one that h is made for."""
    if method is not None:
        check_method(method)
    if options is None:
        return METHODS[method or natural_method(robust)]()
    if method not in (None, method_of(options)):
        raise TypeError(
            f"expected {METHODS[method].__name__} for the method {method!r}, got {type(options).__name__}: pass "
            "options of that method, or leave the method out"
        )
    return options


def natural_method(robust: nn.Module) -> str:
    """Return the method that certifies this h."""
    if isinstance(robust, SmoothedClassifier):
        return "smoothing"
    if isinstance(robust, LipschitzLogits):
        return "lipschitz"
    raise NotCertifiableError(
        f"expected a smoothed classifier or a network with a proven Lipschitz constant as h, got a "
        f"{type(robust).__name__}: smooth it with ads.SmoothedClassifier(h, sigma), or estimate with method='local'"
    )


def make_certifier(
    target: CertificationTarget, options: CertifyOptions, norm: str | None = None, *, pixels: int = 1
) -> Certifier:
    """Return the certifier for a target, or raise `NotCertifiableError` if the method does not cover its h.

    Args:
        norm: norm of the radii; default L2, or Linf for a local estimate.
        pixels: dimension of an image, which converts a wanted Linf radius to L2.
    """
    if norm is not None and norm not in NORMS:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {norm!r}")
    if isinstance(options, SmoothingOptions):
        if norm == "Linf" and options.radius is not None:
            options = replace(options, radius=options.radius * math.sqrt(pixels) * (1 + rounding.LINF_TO_L2))
        return _smoothing(target, options)
    if isinstance(options, LipschitzOptions):
        return _lipschitz(target, options)
    return _local(target, options, norm or "Linf")


def _smoothing(target: CertificationTarget, options: SmoothingOptions) -> Smoothing:
    h = target.robust
    if not isinstance(h, SmoothedClassifier):
        raise NotCertifiableError(
            f"expected a smoothed classifier as h, got a {type(h).__name__}: ads.SmoothedClassifier(h, sigma=0.5)"
        )
    if target.scale != 1:
        raise NotCertifiableError(
            f"expected unscaled logits of h, got them times {target.scale:g}: the theorem is about a mean of "
            "probabilities, not about its power; scale the logits of the base inside the SmoothedClassifier"
        )
    return Smoothing(robust=h, alpha=target.alpha, options=options)


def _lipschitz(target: CertificationTarget, options: LipschitzOptions) -> Lipschitz:
    if not isinstance(target.robust, LipschitzLogits):
        raise NotCertifiableError(
            f"expected a network that proves its Lipschitz constant as h, got a {type(target.robust).__name__}: it "
            "needs a method pairwise_lipschitz, as the architecture lipschitz_net has; method='local' gives an estimate"
        )
    return Lipschitz(robust=target.robust, alpha=target.alpha, scale=target.scale, theorem=options.theorem)


def _local(target: CertificationTarget, options: LocalOptions, norm: str) -> LocalEstimate:
    h = target.robust
    if isinstance(h, Hardmax) or (isinstance(h, SmoothedClassifier) and h.hard):
        raise NotCertifiableError(
            "expected an h with a gradient, got hard votes, which have none: estimate with soft votes, hard=False"
        )
    return LocalEstimate(
        robust=h,
        threat=NORMS[norm](options.eps),
        alpha=target.alpha,
        scale=target.scale,
        steps=options.steps,
        batch_size=options.batch_size,
    )
