"""Deterministic certification, by Lipschitz constants that the robust classifier proves."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.certification import radius, rounding
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision
from adaptive_smoothing.runs.journal import Columns
from adaptive_smoothing.runs.progress import ProgressCallback, ignore_progress


@runtime_checkable
class LipschitzLogits(Protocol):
    """A classifier that proves Lipschitz constants of its logits."""

    def pairwise_lipschitz(self) -> Tensor:
        """Return [C, C] bounds on the L2 Lipschitz constants of logit i minus logit j, for the logits of `forward`."""


@dataclass(frozen=True, kw_only=True)
class Lipschitz:
    """Certifier of a Lipschitz h, or of a mixture with it in which the logits of h are multiplied by `scale`.

    The logits are computed in float64. A user runs the network in float32, so each lead is reduced by a multiple of the
    difference between the two (`rounding.LOGIT_ERRORS`).
    """

    name: ClassVar[str] = "lipschitz"
    norm: ClassVar[str] = "L2"

    robust: nn.Module
    alpha: float = 1.0
    scale: float = 1.0
    theorem: str = "margin"

    def __post_init__(self) -> None:
        radius.check_alpha(self.alpha)

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"method": self.name, "theorem": self.theorem, "constant": self.constants.max().item()}
        return {**settings, "failure probability": 0.0, "precision": "float64"}

    @cached_property
    def constants(self) -> Tensor:
        """The [C, C] constants of the differences of the scaled logits."""
        with full_precision():
            both = [_pairwise_lipschitz(each) for each in (self.robust, self._exact)]
        larger = self.scale * torch.maximum(*both)
        if larger.dim() != 2 or larger.shape[0] != larger.shape[1] or not _are_positive(larger):
            expected = "[C, C] positive, finite constants from pairwise_lipschitz"
            found = f"shape {list(larger.shape)} with values from {larger.min():g} to {larger.max():g}"
            raise ValueError(f"expected {expected}, got {found}: return one constant for each pair of classes")
        return larger

    @cached_property
    def _exact(self) -> nn.Module:
        """The copy of h in float64."""
        return copy.deepcopy(self.robust).double()

    def certify(self, images: Tensor, index: Tensor, progress: ProgressCallback = ignore_progress) -> Columns:
        """Return the columns that `certify.Certifier` lists, and those that `certificates.with_alpha` needs.

        These are `doubt` (1 - gap), `constant` (M) and `alone` (the radius of h alone).
        """
        # The float64 copy may have been made by a process on another device.
        logits = self.scale * fp32_logits_chunked(self._exact.to(images.device), images.double()).cpu()
        rounded = self.scale * fp32_logits_chunked(self.robust, images).cpu().double()
        order = logits.argsort(dim=1, descending=True, stable=True)
        ranked, errors = logits.gather(1, order), (logits - rounded).abs().amax(1, keepdim=True)
        leads = ranked[:, :1] - ranked[:, 1:] - 2 * rounding.LOGIT_ERRORS * errors
        shares = torch.cat([torch.zeros_like(leads[:, :1]), -leads], 1).softmax(1)
        pairs = self.constants[order[:, :1], order[:, 1:]]
        alone = radius.logit_radius(leads.numpy(), pairs.numpy())
        complement, constant = _gap_complement(leads), pairs.amax(1).numpy()
        if self.theorem == "paper":
            # thm:certified_radius with L_i = max_k M_ik / 4: the gradient of a softmax probability p_i is
            # p_i sum_k p_k (z_i - z_k)', and p_i (1 - p_i) <= 1/4.
            h, each = shares.numpy(), (self.constants.amax(1) / 4)[order].numpy()
            found = radius.lipschitz_radius(h[:, 0], h[:, 1:], each[:, 0], each[:, 1:], self.alpha)
        else:
            found = alone if self.alpha == 1 else radius.lipschitz_margin_radius(complement, constant, self.alpha)
        return {
            "robust_class": logits.argmax(1).numpy(),
            "lower": shares[:, 0].numpy(),
            "upper": shares[:, 1].numpy(),
            "doubt": complement,
            "constant": constant,
            "alone": alone,
            "radius": found,
            "estimate": found,
            "samples": np.ones(len(images), dtype=np.int64),
            "probabilities": logits.softmax(1).float().numpy(),
        }


def _pairwise_lipschitz(h: nn.Module) -> Tensor:
    assert isinstance(h, LipschitzLogits)
    return h.pairwise_lipschitz().cpu().double()


def _are_positive(constants: Tensor) -> bool:
    """Return whether the constants of all pairs of different classes are positive and finite."""
    pairs = constants[~torch.eye(len(constants), dtype=torch.bool)]
    return bool((pairs.isfinite() & (pairs > 0)).all())


def _gap_complement(leads: Tensor) -> np.ndarray:
    """Return 1 - gap without cancellation: (sum + largest) / (1 + sum) of exp(-lead)."""
    others = (-leads.clamp(-700, 700)).exp()
    total = others.sum(1)
    return ((total + others.amax(1)) / (1 + total)).clamp_max(2.0).numpy()
