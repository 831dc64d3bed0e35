"""The mixtures that the paper compares (fig:compare_R) before it chooses eq. adap_sm_4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.formula import Mixed, check_mixed, log_probabilities, mix_normalised, mix_sum
from adaptive_smoothing.mixing.r_options import R_OPTIONS, ROptionName, Scores, norm_of
from adaptive_smoothing.threat import Linf, Threat

FormName = Literal["normalised", "sum"]
FORMS: dict[str, Callable[..., Tensor]] = {"normalised": mix_normalised, "sum": mix_sum}


class GradientMixedClassifier(BaseClassifiers):
    """Logits of (g_i + gamma R_i h_i) / (1 + gamma R_i), eq. adap_sm_3, or of its numerator, eq. adap_sm_1.

    With `r="one"` on probabilities this is `MixedClassifier` at alpha = gamma / (1 + gamma).

    Args:
        r: the option for R_i, see `r_options`; "standard_gradient" gives eq. adap_sm_2.
        on: the scores that are mixed.
        form: "sum" gives the numerator.
        norm: the threat whose dual norm measures gradients.
    """

    gamma: Tensor

    def __init__(
        self,
        standard: nn.Module,
        robust: nn.Module,
        gamma: float | Tensor,
        *,
        r: ROptionName = "one",
        on: Mixed = "probabilities",
        form: FormName = "normalised",
        norm: type[Threat] | Threat = Linf,
    ) -> None:
        super().__init__(standard, robust)
        self.register_buffer("gamma", self.as_tensor(gamma, "gamma"))
        check_gamma(self.gamma)
        check_mixed(on)
        for name, value, known in (("r", r, R_OPTIONS), ("form", form, FORMS)):
            if value not in known:
                raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {value!r}")
        self.r = r
        self.on = on
        self.form = form
        self.norm = norm_of(norm)

    def forward(self, images: Tensor) -> Tensor:
        g, h = self.base_logits(images)
        r = R_OPTIONS[self.r](self._scores(self.standard), self._scores(self.robust), images, self.norm)
        return FORMS[self.form](g, h, self.gamma, r, self.on)

    def extra_repr(self) -> str:
        settings = f"r={self.r!r}, on={self.on!r}, form={self.form!r}, norm={self.norm.__name__}"
        return f"gamma={self.gamma.item():g}, {settings}"

    def _scores(self, model: nn.Module) -> Scores:
        """Return the scores g_i that are mixed, whose gradients R_i measures."""
        if self.on == "logits":
            return model
        return lambda images: log_probabilities(model(images)).exp()


def check_gamma(gamma: Tensor) -> None:
    """Raise an error unless gamma is one finite number >= 0."""
    if gamma.dim() != 0 or not 0 <= gamma.item() < math.inf:
        raise ValueError(
            f"expected gamma as one finite number >= 0, got {gamma.tolist()}; "
            "gamma = inf is the robust classifier itself"
        )
