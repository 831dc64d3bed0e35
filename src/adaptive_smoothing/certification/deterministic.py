"""Certificates without chance: from a Lipschitz constant that the robust classifier proves of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.attacks.verdict import all_logits
from adaptive_smoothing.certification import radius
from adaptive_smoothing.certification.telling import Tell, nothing

# Logits are computed in float32, the constant is about exact ones: each lead is taken to be smaller by this share of
# the largest logit, a hundred times of what was seen on the networks of this package.
ROUNDING = 1e-4


@runtime_checkable
class LipschitzLogits(Protocol):
    """A classifier with a proof: [C, C] bounds on the L2 Lipschitz constants of the differences of its logits.

    Everything that multiplies the logits is in them.
    """

    def pairwise_lipschitz(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Lipschitz:
    """The radius of h, or of a mixture with it, from the constants of h's logits; `scale` multiplies these."""

    robust: Any
    alpha: float = 1.0
    scale: float = 1.0
    theorem: str = "margin"

    def __post_init__(self) -> None:
        radius.needed_margin(self.alpha)
        if self.theorem not in THEOREMS:
            raise ValueError(f"expected a theorem among {', '.join(THEOREMS)}, got {self.theorem!r}")

    @property
    def name(self) -> str:
        return "lipschitz"

    @property
    def norm(self) -> str:
        return "L2"

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "theorem": self.theorem,
            "constant": self.constants.max().item(),
            "failure probability": 0.0,
            "precision": "float32",
        }

    @cached_property
    def constants(self) -> Tensor:
        """[C, C] of the differences of logits as they are mixed."""
        return self.scale * self.robust.pairwise_lipschitz().cpu().double()

    def certify(self, images: Tensor, index: Tensor, tell: Tell = nothing) -> dict[str, np.ndarray]:
        """See `Method`. Without chance; the column `constant` is that of each image's class."""
        logits = self.scale * all_logits(self.robust, images).double().cpu()
        found = THEOREMS[self.theorem](logits, self.constants, self.alpha)
        leads, pairs = _leads(logits, self.constants)
        shares = _shares(leads)
        return {
            "robust_class": logits.argmax(1).numpy(),
            "lower": shares[:, 0].numpy(),
            "upper": shares[:, 1].numpy(),
            "constant": pairs.amax(1).numpy(),
            "radius": found,
            "estimate": found,
            "samples": np.ones(len(images), dtype=np.int64),
            "probabilities": logits.softmax(1).float().numpy(),
        }


def _by_margin(logits: Tensor, constants: Tensor, alpha: float) -> np.ndarray:
    """`lipschitz_margin_radius`, and at alpha = 1 the radius of the logits themselves, which is never below it."""
    leads, pairs = _leads(logits, constants)
    if alpha == 1:
        return radius.logit_radius(leads.numpy(), pairs.numpy())
    shares = _shares(leads)
    return radius.lipschitz_margin_radius(
        (shares[:, 0] - shares[:, 1]).clamp_min(0).numpy(), pairs.amax(1).numpy(), alpha
    )


def _by_probabilities(logits: Tensor, constants: Tensor, alpha: float) -> np.ndarray:
    """thm:certified_radius. Of a softmax, p_i has the gradient p_i sum_k p_k (z_i - z_k): L_i = max_k M_ik / 4."""
    leads, _ = _leads(logits, constants)
    shares = _shares(leads).numpy()
    each = (constants.amax(1) / 4)[_ranking(logits)].numpy()
    return radius.lipschitz_radius(shares[:, 0], shares[:, 1:], each[:, 0], each[:, 1:], alpha)


def _leads(logits: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first class over each other, less what rounding may have added, and the constants of these differences."""
    order = _ranking(logits)
    ranked = logits.gather(1, order)
    leads = ranked[:, :1] - ranked[:, 1:] - ROUNDING * logits.abs().amax(1, keepdim=True)
    return leads, constants[order[:, :1], order[:, 1:]]


def _shares(leads: Tensor) -> Tensor:
    """Probabilities, from the first class down, if all others are as close as rounding allows."""
    return torch.cat([torch.zeros_like(leads[:, :1]), -leads], 1).softmax(1)


def _ranking(logits: Tensor) -> Tensor:
    return logits.argsort(dim=1, descending=True, stable=True)


THEOREMS: dict[str, Callable[..., np.ndarray]] = {"margin": _by_margin, "paper": _by_probabilities}
