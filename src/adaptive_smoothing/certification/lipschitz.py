"""Certificates without chance: from a Lipschitz constant that the robust classifier proves of itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.certification import radius
from adaptive_smoothing.certification.telling import Tell, nothing
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision

# The theorem is about exact logits, and what is certified are those of float64, which are exact enough. Whoever runs
# the network in float32 gets others: each lead is taken to be smaller by so many times what the two differ by at the
# image.
ROUNDING = 100.0


@runtime_checkable
class LipschitzLogits(Protocol):
    """A classifier with a proof: [C, C] bounds on the L2 Lipschitz constants of the differences of its logits.

    Everything that multiplies the logits is in them.
    """

    def pairwise_lipschitz(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Lipschitz:
    """The radius of h, or of a mixture with it, from the constants of h's logits; `scale` multiplies these."""

    name: ClassVar[str] = "lipschitz"
    norm: ClassVar[str] = "L2"

    robust: Any
    alpha: float = 1.0
    scale: float = 1.0
    theorem: str = "margin"

    def __post_init__(self) -> None:
        radius.needed_margin(self.alpha)
        if self.theorem not in THEOREMS:
            raise ValueError(f"expected a theorem among {', '.join(THEOREMS)}, got {self.theorem!r}")

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "theorem": self.theorem,
            "constant": self.constants.max().item(),
            "failure probability": 0.0,
            "precision": "float64",
        }

    @cached_property
    def constants(self) -> Tensor:
        """[C, C] of the differences of logits as they are mixed."""
        with full_precision():
            found = [each.pairwise_lipschitz().cpu().double() for each in (self.robust, self._exact)]
        larger = self.scale * torch.maximum(*found)
        others = larger[~torch.eye(len(larger), dtype=torch.bool)]
        if larger.dim() != 2 or larger.shape[0] != larger.shape[1] or not (others.isfinite() & (others > 0)).all():
            raise ValueError(
                "expected [C, C] positive, finite constants from pairwise_lipschitz, got others: one for each pair"
            )
        return larger

    @cached_property
    def _exact(self) -> Any:
        return copy.deepcopy(self.robust).double()

    def certify(self, images: Tensor, index: Tensor, tell: Tell = nothing) -> dict[str, np.ndarray]:
        """See `Method`. Without chance; the columns `doubt`, `constant` and `alone` (the radius of h) are what any
        other alpha needs."""
        # The copy may have come with the method from another process, and another device.
        logits = self.scale * fp32_logits_chunked(self._exact.to(images.device), images.double()).cpu()
        rounded = self.scale * fp32_logits_chunked(self.robust, images).cpu().double()
        leads, pairs = _leads(logits, self.constants, (logits - rounded).abs().amax(1))
        shares = _probabilities(leads)
        alone = radius.logit_radius(leads.numpy(), pairs.numpy())
        doubt, constant = _doubt(leads), pairs.amax(1).numpy()
        if self.theorem == "paper":
            found = _by_probabilities(logits, shares, self.constants, self.alpha)
        else:
            found = alone if self.alpha == 1 else radius.lipschitz_margin_radius(doubt, constant, self.alpha)
        return {
            "robust_class": logits.argmax(1).numpy(),
            "lower": shares[:, 0].numpy(),
            "upper": shares[:, 1].numpy(),
            "doubt": doubt,
            "constant": constant,
            "alone": alone,
            "radius": found,
            "estimate": found,
            "samples": np.ones(len(images), dtype=np.int64),
            "probabilities": logits.softmax(1).float().numpy(),
        }


def _by_probabilities(logits: Tensor, shares: Tensor, constants: Tensor, alpha: float) -> np.ndarray:
    """thm:certified_radius. Of a softmax, p_i has the gradient p_i sum_k p_k (z_i - z_k): L_i = max_k M_ik / 4."""
    each = (constants.amax(1) / 4)[_ranking(logits)].numpy()
    ranked = shares.numpy()
    return radius.lipschitz_radius(ranked[:, 0], ranked[:, 1:], each[:, 0], each[:, 1:], alpha)


def _leads(logits: Tensor, constants: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first class over each other, less what rounding may add, and the constants of these differences."""
    order = _ranking(logits)
    ranked = logits.gather(1, order)
    leads = ranked[:, :1] - ranked[:, 1:] - 2 * ROUNDING * rounding[:, None]
    return leads, constants[order[:, :1], order[:, 1:]]


def _probabilities(leads: Tensor) -> Tensor:
    """From the first class down, if all others are as close as rounding allows."""
    return torch.cat([torch.zeros_like(leads[:, :1]), -leads], 1).softmax(1)


def _doubt(leads: Tensor) -> np.ndarray:
    """1 minus the gap to the second class, to all digits: (sum + largest) / (1 + sum) of exp(-lead)."""
    others = (-leads.clamp(-700, 700)).exp()
    total = others.sum(1)
    return ((total + others.amax(1)) / (1 + total)).clamp_max(2.0).numpy()


def _ranking(logits: Tensor) -> Tensor:
    return logits.argsort(dim=1, descending=True, stable=True)


THEOREMS = ("margin", "paper")
