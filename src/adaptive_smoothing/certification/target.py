"""A classifier taken apart into what its certificate is about: h, the smallest alpha, and g, which may be anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.certification.radius import needed_margin
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import log_probabilities, mix_log_probabilities
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.mixer import Mixer
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import LogitTransform
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision
from adaptive_smoothing.models.smoothed import SmoothedClassifier

# A mixture is computed in float32: by this its alpha could as well be smaller.
ROUNDING = 1e-6
# Images whose alpha is asked for at a time.
TOGETHER = 64


class NotCertifiableError(ValueError):
    """What was asked for cannot be certified, and why."""


@dataclass(frozen=True)
class CertificationTarget:
    """h, whose logits are multiplied by `scale`, and the smallest weight it has; alone it has all of it."""

    model: nn.Module
    robust: nn.Module
    alpha: float = 1.0
    scale: float = 1.0

    @classmethod
    def of(cls, model: nn.Module) -> CertificationTarget:
        """Refuses what no theorem is about."""
        if isinstance(model, GradientMixedClassifier):
            raise NotCertifiableError(
                "expected a mixture of probabilities with an alpha, got one with gradients or logits in it: logits are "
                "not bounded, so g can outweigh any h; use MixedClassifier"
            )
        if not isinstance(model, MixedClassifier):
            return cls(model, model)
        if isinstance(model.robust, LogitTransform):
            raise NotCertifiableError(
                f"expected a robust classifier as it was trained, got its {type(model.robust).__name__}: the transform "
                "is not in the Lipschitz constant, nor in the mean over the noise; mix the classifier itself"
            )
        return cls(model, model.robust, _smallest_alpha(model), model.robust_scale.item())

    @torch.no_grad()
    def say(self, images: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of the mixture if these are h's, and those of g: without g, both are h's."""
        if not isinstance(self.model, MixedClassifier):
            return h, h
        with full_precision():
            g = log_probabilities(fp32_logits_chunked(self.model.standard, images), self.model.standard_scale)
            log_h = h.clamp_min(torch.finfo(h.dtype).tiny).log()
            mixed = mix_log_probabilities(g, log_h, _alphas(self.model, images)).exp()
        if not mixed.isfinite().all():
            raise ValueError(
                "expected numbers from the mixture, got NaN: look for an alpha outside of [0, 1], or a broken g"
            )
        return mixed, g.exp()


def _smallest_alpha(model: MixedClassifier) -> float:
    # Not a child of it either, which may do anything.
    if isinstance(model.alpha, Mixer) and type(model.alpha) is not MixingNetwork:
        raise NotCertifiableError(
            f"expected an alpha that mixes g with h itself, got a {type(model.alpha).__name__}, which puts logits of "
            "its own in the place of h's: nothing is known of how these change; certify model.with_alpha(0.9)"
        )
    if isinstance(model.alpha, Mixer) and isinstance(model.robust, SmoothedClassifier):
        raise NotCertifiableError(
            "expected a fixed alpha, or one that is read off the image, with a smoothed h, got one that is read off "
            "features of h: under noise these are another set for each sample; certify model.with_alpha(0.9)"
        )
    if isinstance(model.alpha, nn.Module):
        smallest = model.alpha_range[0].item()
        if smallest < 0.5:
            raise NotCertifiableError(
                f"expected a learned alpha with an enforced range from at least 1/2 on, got one from {smallest:g} on: "
                "an attack may choose the smallest; certify model.with_alpha_range(0.8, 1)"
            )
    else:
        smallest = _fixed_alpha(model).min().item()
        if model.alpha.dim():
            raise NotCertifiableError(
                "expected one alpha for all images, got one per image of a batch: use with_alpha(number)"
            )
        if smallest < 0.5:
            raise NotCertifiableError(
                f"expected alpha in [1/2, 1], got {smallest:g}: below 1/2 the weight of g outvotes the surest h, and "
                "nothing can be certified"
            )
    return surely(smallest)


def surely(alpha: float) -> float:
    """An alpha that the mixture has in float32, too: at 1 it is h to the last bit."""
    needed_margin(alpha)
    return max(alpha - ROUNDING, 0.5) if alpha < 1 else 1.0


def _alphas(model: MixedClassifier, images: Tensor) -> Tensor:
    """One for all images, or one for each, some images at a time."""
    if not isinstance(model.alpha, nn.Module):
        return _fixed_alpha(model)
    if not model.learns_alpha:
        return model.alpha_range[0]
    return torch.cat([model.mix(part).alpha for part in images.split(TOGETHER)])


def _fixed_alpha(model: MixedClassifier) -> Tensor:
    """As the model has it: the range in the precision of alpha, not the other way round."""
    assert isinstance(model.alpha, Tensor)
    alpha = model.alpha.detach().to(torch.promote_types(model.alpha.dtype, torch.float32))
    low, high = model.alpha_range.to(alpha)
    return torch.lerp(low, high, alpha)
