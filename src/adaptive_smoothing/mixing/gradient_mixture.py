"""The mixtures the paper compares (fig:compare_R) on its way to eq. adap_sm_4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.formula import Mixed, check_mixed, log_probabilities, mix_normalised, mix_sum
from adaptive_smoothing.mixing.trust import TRUSTS, Scores, TrustName, norm_of
from adaptive_smoothing.threat import Linf, Threat

FormName = Literal["normalised", "sum"]
FORMS: dict[str, Callable[..., Tensor]] = {"normalised": mix_normalised, "sum": mix_sum}


class GradientMixedClassifier(BaseClassifiers):
    """(g_i + gamma R_i h_i) / (1 + gamma R_i), eq. adap_sm_3; with form="sum" the numerator, eq. adap_sm_1.

    `trust` names R_i (see trust.py; "standard_gradient" makes eq. adap_sm_2), `on` what is mixed,
    `norm` the threat whose dual norm measures gradients. With trust="one" on probabilities it is
    `MixedClassifier` at alpha = gamma / (1 + gamma). The logits are returned in every case.
    """

    gamma: Tensor

    def __init__(
        self,
        standard: nn.Module,
        robust: nn.Module,
        gamma: float | Tensor,
        *,
        trust: TrustName = "one",
        on: Mixed = "probabilities",
        form: FormName = "normalised",
        norm: type[Threat] | Threat = Linf,
    ) -> None:
        super().__init__(standard, robust)
        self.register_buffer("gamma", self.settle(gamma, "gamma"))
        check_gamma(self.gamma)
        check_mixed(on)
        for name, value, known in (("trust", trust, TRUSTS), ("form", form, FORMS)):
            if value not in known:
                raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {value!r}")
        self.trust = trust
        self.on = on
        self.form = form
        self.norm = norm_of(norm)

    def forward(self, images: Tensor) -> Tensor:
        g, h = self.base_logits(images)
        trust = TRUSTS[self.trust](self._scores(self.standard), self._scores(self.robust), images, self.norm)
        return FORMS[self.form](g, h, self.gamma, trust, self.on)

    def extra_repr(self) -> str:
        settings = f"trust={self.trust!r}, on={self.on!r}, form={self.form!r}, norm={self.norm.__name__}"
        return f"gamma={self.gamma.item():g}, {settings}"

    def _scores(self, model: nn.Module) -> Scores:
        """The g_i whose gradient R_i measures: whatever is mixed."""
        if self.on == "logits":
            return model
        return lambda images: log_probabilities(model(images)).exp()


def check_gamma(gamma: Tensor) -> None:
    """One finite number, zero or more."""
    if gamma.dim() != 0 or not 0 <= gamma.item() < math.inf:
        raise ValueError(
            f"expected gamma as one finite number >= 0, got {gamma.tolist()}; "
            "gamma = inf is the robust classifier itself"
        )
