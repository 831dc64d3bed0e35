"""The mixtures with weights R_i(x) that the paper compares (fig:compare_R) before it chooses eq. adap_sm_4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.formula import OutputKind, log_probabilities, mix_normalised, mix_sum
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.threat import Linf, Threat

# A function from images to outputs: of every class [N, C], or one per image [N].
Outputs = Callable[[Tensor], Tensor]
FORMS: dict[str, Callable[..., Tensor]] = {"normalised": mix_normalised, "sum": mix_sum}


class GradientMixedClassifier(BaseClassifiers):
    """Logits of (g_i + gamma R_i h_i) / (1 + gamma R_i), eq. adap_sm_3, or of its numerator, eq. adap_sm_1.

    With `r="one"` on probabilities this is `MixedClassifier` at alpha = gamma / (1 + gamma).

    Args:
        gamma: the weight of h, at least 0.
        r: the function of this module that computes R_i; "standard_gradient" gives eq. adap_sm_2.
        on: the outputs g_i and h_i that are mixed.
        form: "normalised" for eq. adap_sm_3, "sum" for eq. adap_sm_1.
        norm: the threat whose dual norm measures gradients.

    Examples:
        >>> same = ads.GradientMixedClassifier(g, h, gamma=4.0)(images)  # gamma 4 is alpha 0.8
        >>> torch.allclose(same, ads.MixedClassifier(g, h, 0.8)(images), atol=1e-4)
        True
    """

    gamma: Tensor

    def __init__(
        self,
        standard: nn.Module,
        robust: nn.Module,
        gamma: float | Tensor,
        *,
        r: Literal["one", "standard_gradient", "predicted_gradient", "gradient_ratio"] = "one",
        on: OutputKind = "probabilities",
        form: Literal["normalised", "sum"] = "normalised",
        norm: type[Threat] | Threat = Linf,
    ) -> None:
        super().__init__(standard, robust)
        self.register_buffer("gamma", self.as_tensor(gamma, "gamma"))
        check_gamma(self.gamma)
        check_choice("on", on, get_args(OutputKind))
        check_choice("r", r, R_OPTIONS)
        check_choice("form", form, FORMS)
        self.r, self.on, self.form, self.norm = r, on, form, norm_of(norm)

    def forward(self, images: Tensor) -> Tensor:
        g, h = self.transformed(*self.base_outputs(images)[:2], images)
        r = R_OPTIONS[self.r](self._outputs(self.standard), self._outputs(self.robust), images, self.norm)
        return FORMS[self.form](g, h, self.gamma, r, self.on)

    def extra_repr(self) -> str:
        names = f"r={self.r!r}, on={self.on!r}, form={self.form!r}, norm={self.norm.__name__}"
        return f"gamma={self.gamma.item():g}, {names}"

    def _outputs(self, model: nn.Module) -> Outputs:
        """Return the function from images to the outputs that are mixed. R_i measures its gradients."""
        return model if self.on == "logits" else lambda images: log_probabilities(model(images)).exp()


def one(standard: Outputs, robust: Outputs, images: Tensor, norm: type[Threat]) -> Tensor:
    """Return R_i = 1, the choice of the paper and the only option without a backward pass in the forward pass."""
    return torch.ones(images.shape[0], 1, dtype=images.dtype, device=images.device)


def standard_gradient(standard: Outputs, robust: Outputs, images: Tensor, norm: type[Threat]) -> Tensor:
    """Return R_i = ||grad g_i||_{p*}, which turns eq. adap_sm_3 into eq. adap_sm_2."""
    return class_gradient_norms(standard, images, norm)


def predicted_gradient(standard: Outputs, robust: Outputs, images: Tensor, norm: type[Threat]) -> Tensor:
    """Return R_i = ||grad max_j g_j||_{p*}: one backward pass for all classes."""
    _, gradient = value_and_gradient(lambda batch: standard(batch).max(1).values, images)
    return norm(0.0).dual_norm(gradient)[:, None]


def gradient_ratio(standard: Outputs, robust: Outputs, images: Tensor, norm: type[Threat]) -> Tensor:
    """Return R_i = ||grad g_i||_{p*} / ||grad h_i||_{p*}.

    A tiny number is added to both norms: where h is flat the ratio is large but finite, where both are flat it is 1.
    """
    g, h = (class_gradient_norms(outputs, images, norm) for outputs in (standard, robust))
    # Its square is still a normal number, so the derivative of the ratio cannot overflow.
    tiny = torch.finfo(g.dtype).tiny ** (1 / 3)
    return (g + tiny) / (h + tiny)


R_OPTIONS: dict[str, Callable[[Outputs, Outputs, Tensor, type[Threat]], Tensor]] = {
    option.__name__: option for option in (one, standard_gradient, predicted_gradient, gradient_ratio)
}


def class_gradient_norms(outputs: Outputs, images: Tensor, norm: type[Threat], classes_at_once: int = 16) -> Tensor:
    """Return the dual norm of the gradient of the output of every class, [N, C], for `classes_at_once` at a time."""
    with _normal_mode():
        values, pull_back, *_ = torch.func.vjp(outputs, images.clone())

        def norms(one_hot: Tensor) -> Tensor:
            return norm(0.0).dual_norm(pull_back(one_hot.expand_as(values))[0])

        one_hots = torch.eye(values.shape[1], dtype=values.dtype, device=values.device)
        return torch.vmap(norms, out_dims=1, chunk_size=min(classes_at_once, len(one_hots)))(one_hots)


def value_and_gradient(output: Outputs, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return an output per image [N] and its gradient with respect to that image."""
    # torch.func also works under no_grad and torch.compile, and inside an attack.
    with _normal_mode():
        value, pull_back, *_ = torch.func.vjp(output, images.clone())
        return value, pull_back(torch.ones_like(value))[0]


@contextmanager
def _normal_mode() -> Iterator[None]:
    """Leave inference mode, in which `torch.func` of torch 2.11 returns gradients of zero. `no_grad` stays as it is.

    A tensor that was made in inference mode must be cloned before it is used here.
    """
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def norm_of(norm: type[Threat] | Threat) -> type[Threat]:
    """Return the norm of a threat: its class."""
    kind = norm if isinstance(norm, type) else type(norm)
    if not issubclass(kind, Threat):
        raise TypeError(f"expected norm as a threat, got {norm!r}: pass ads.Linf or ads.L2, the class itself")
    return kind


def check_gamma(gamma: Tensor) -> None:
    """Raise an error unless gamma is one finite number >= 0."""
    if gamma.dim() != 0 or not 0 <= gamma.item() < math.inf:
        hint = "gamma = inf is the robust classifier itself"
        raise ValueError(f"expected gamma as one finite number >= 0, got {gamma.tolist()}; {hint}")
