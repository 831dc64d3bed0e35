"""The parts of a model that a certificate depends on: h and the smallest weight of h. g may be any classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.certification import rounding
from adaptive_smoothing.certification.radius import check_alpha
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import log_probabilities, mix_log_probabilities
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import LogitTransform
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision
from adaptive_smoothing.models.smoothed import SmoothedClassifier

# Images whose alpha is computed in one batch.
BATCH = 64


class NotCertifiableError(ValueError):
    """The error for a model that no theorem covers; the message gives the reason."""


@dataclass(frozen=True)
class CertificationTarget:
    """The parts of a model that a theorem needs.

    Args:
        model: the mixture, or h alone.
        robust: h.
        alpha: lower bound on the weight of h.
        scale: factor of the logits of h.
    """

    model: nn.Module
    robust: nn.Module
    alpha: float = 1.0
    scale: float = 1.0

    @classmethod
    def of(cls, model: nn.Module) -> CertificationTarget:
        """Return the parts of a model, or raise `NotCertifiableError` if no theorem covers it."""
        if isinstance(model, GradientMixedClassifier):
            found = "a mixture of logits or gradients"
            hint = "logits are not bounded, so g can outweigh any h; use MixedClassifier"
            raise NotCertifiableError(f"expected a mixture of probabilities with an alpha, got {found}: {hint}")
        if not isinstance(model, MixedClassifier):
            return cls(model, model)
        if isinstance(model.robust, LogitTransform):
            raise NotCertifiableError(
                f"expected a robust classifier without a logit transform, got {type(model.robust).__name__}: the "
                "transform is not in the Lipschitz constant, nor in the mean over the noise; mix the classifier itself"
            )
        return cls(model, model.robust, _smallest_alpha(model), model.robust_scale.item())

    @torch.no_grad()
    def probabilities(self, images: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of the mixture and of g, given those of h. For h alone, both are those of h."""
        if not isinstance(self.model, MixedClassifier):
            return h, h
        with full_precision():
            g = log_probabilities(fp32_logits_chunked(self.model.standard, images), self.model.standard_scale)
            log_h = h.clamp_min(torch.finfo(h.dtype).tiny).log()
            mixed = mix_log_probabilities(g, log_h, _alphas(self.model, images)).exp()
        if not mixed.isfinite().all():
            raise ValueError("expected finite probabilities, got NaN: look for an alpha outside [0, 1], or NaN from g")
        return mixed, g.exp()


def _smallest_alpha(model: MixedClassifier) -> float:
    """Return a lower bound on the weight of h, or raise `NotCertifiableError` if there is none from 1/2 on."""
    # A subclass of MixingNetwork may replace the logits of h as well.
    if isinstance(model.alpha, Mixer) and type(model.alpha) is not MixingNetwork:
        found = f"{type(model.alpha).__name__}, which may replace the logits of h"
        hint = "nothing is proven about the replacement; certify model.with_alpha(0.9)"
        raise NotCertifiableError(f"expected an alpha that mixes g with h itself, got {found}: {hint}")
    if isinstance(model.alpha, Mixer) and isinstance(model.robust, SmoothedClassifier):
        expected = "a fixed alpha, or one computed from the image, with a smoothed h"
        hint = "under noise they differ from sample to sample; certify model.with_alpha(0.9)"
        raise NotCertifiableError(f"expected {expected}, got one computed from features of h: {hint}")
    if isinstance(model.alpha, Tensor) and model.alpha.dim():
        raise NotCertifiableError("expected one alpha for all images, got one per image: use with_alpha(number)")
    smallest = (_fixed_alpha(model) if isinstance(model.alpha, Tensor) else model.alpha_range[0]).item()
    if smallest < 0.5:
        raise NotCertifiableError(
            f"expected alpha in [1/2, 1], got {smallest:g}: below 1/2 the weight of g exceeds that of h, and nothing "
            "can be certified; an attack can change a learned alpha: certify model.with_alpha_range(0.8, 1)"
        )
    return safe_alpha(smallest)


def safe_alpha(alpha: float) -> float:
    """Return a lower bound on alpha as float32 computes the mixture; at 1 the mixture is h exactly."""
    check_alpha(alpha)
    return max(alpha - rounding.ALPHA, 0.5) if alpha < 1 else 1.0


def _alphas(model: MixedClassifier, images: Tensor) -> Tensor:
    """Return one alpha for all images, or one per image."""
    if not isinstance(model.alpha, nn.Module):
        return _fixed_alpha(model)
    if not model.learns_alpha:
        return model.alpha_range[0]
    return torch.cat([model.mix(part).alpha for part in images.split(BATCH)])


def _fixed_alpha(model: MixedClassifier) -> Tensor:
    """Return alpha within its range, in the precision of alpha, as the model computes it."""
    assert isinstance(model.alpha, Tensor)
    alpha = model.alpha.detach().to(torch.promote_types(model.alpha.dtype, torch.float32))
    low, high = model.alpha_range.to(alpha)
    return torch.lerp(low, high, alpha)
