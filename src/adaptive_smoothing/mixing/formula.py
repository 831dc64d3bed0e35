"""The mixing formulas of the paper, eqs. adap_sm_1 to adap_sm_4, as pure functions.

`alpha_from_gamma` and `gamma_from_alpha` convert between the two parameters of the paper.

Probabilities are mixed in the log domain: `log((1 - a) * softmax(g) + a * softmax(h))` as written gives infinite logits
and NaN gradients on confident inputs, and a NaN gradient looks like robustness.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from adaptive_smoothing.settings.checks import check_choice

# The outputs of g and h that are mixed.
OutputKind = Literal["probabilities", "logits"]
Numbers = float | Tensor
# The type of an argument that is also the type of the result.
Same = TypeVar("Same", float, Tensor)


def mix_logits(
    g_logits: Tensor, h_logits: Tensor, alpha: Numbers, *, standard_scale: Numbers = 1.0, robust_scale: Numbers = 1.0
) -> Tensor:
    """Return the logits of the mixed classifier, eq. adap_sm_4: log((1 - alpha) softmax(g) + alpha softmax(h)).

    A scale, which is an inverse temperature, multiplies the logits of a base classifier first.
    """
    log_g, log_h = log_probabilities(g_logits, standard_scale), log_probabilities(h_logits, robust_scale)
    return mix_log_probabilities(log_g, log_h, alpha)


def log_probabilities(logits: Tensor, scale: Numbers = 1.0) -> Tensor:
    """Return log softmax(scale * logits) in float32 or more: in bfloat16 an alpha of 0.999 would become 1."""
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) * scale).log_softmax(-1)


def mix_log_probabilities(log_g: Tensor, log_h: Tensor, alpha: Numbers) -> Tensor:
    """Return log((1 - alpha) g + alpha h) from log g and log h, eq. adap_sm_4; alpha is a number, [N] or [N, C].

    The result equals `log_g` at alpha = 0 and `log_h` at alpha = 1 to the last bit. There the gradient with respect to
    alpha is the one-sided derivative, h / g - 1 and 1 - g / h, limited to a finite size: a gradient of zero would hide
    from an attacker that moving alpha changes the prediction. First derivatives are finite for all inputs. Second
    derivatives are finite except for 0 < alpha < 1e-18, where they exceed float32.
    """
    alpha = torch.as_tensor(alpha, dtype=log_g.dtype, device=log_g.device)
    images, classes = log_g.shape
    if alpha.shape not in ((), (images,), (images, 1), (images, classes)):
        raise ValueError(
            f"expected alpha to be one number, one per image [{images}] or one per image and class "
            f"[{images}, {classes}], got shape {list(alpha.shape)}; index alpha with the same images as the batch"
        )
    alpha = alpha[:, None] if alpha.dim() == 1 else alpha
    # Below the smallest normal number 1 / alpha overflows, so a subnormal alpha counts as zero.
    at_g = alpha.abs() < torch.finfo(alpha.dtype).tiny
    at_h = alpha == 1
    inside = alpha.masked_fill(at_g | at_h, 0.5)
    # torch.logaddexp computes the same, but its second derivative can be NaN.
    mixed = torch.stack([torch.log1p(-inside) + log_g, torch.log(inside) + log_h]).logsumexp(0)
    mixed = torch.where(at_g, _leave(log_g, log_h, alpha.masked_fill(~at_g, 0)), mixed)
    return torch.where(at_h, _leave(log_h, log_g, (1 - alpha).masked_fill(~at_h, 0)), mixed)


def _leave(log_p: Tensor, log_q: Tensor, weight: Tensor) -> Tensor:
    """Return log((1 - w) p + w q) = log p + log(1 + w (q / p - 1)) at w = 0, where logsumexp has no derivative in w.

    The ratio is limited so that sums of its square, which is in the second derivative, stay finite.
    """
    limit = 0.45 * math.log(torch.finfo(log_p.dtype).max)
    return log_p + torch.log1p(weight * torch.expm1((log_q - log_p).clamp(max=limit)))


def mix_with_certain_standard(h_logits: Tensor, alpha: Tensor, classes: Tensor) -> Tensor:
    """Return the logits of the mixture of h with a worst-case g, which is certain of `classes` [N].

    No attack on g can do more: if the mixture is correct with each such g, it is correct with any g.
    """
    # -1e4 is the logarithm of a probability that is zero to the last bit.
    certain = torch.full_like(h_logits, -1e4, dtype=torch.float32).scatter(1, classes[:, None], 0.0)
    return mix_log_probabilities(certain, log_probabilities(h_logits), alpha)


def alpha_from_gamma(gamma: Same) -> Same:
    """Return alpha = gamma / (1 + gamma), the reparametrisation of eq. adap_sm_4; 1 at gamma = inf."""
    if isinstance(gamma, Tensor):
        # At infinity the quotient would be NaN; at the largest finite number it is 1.
        gamma = gamma.clamp(max=torch.finfo(gamma.dtype).max)
        return gamma / (1 + gamma)
    if not gamma >= 0:
        raise ValueError(f"expected gamma >= 0 (0 is the standard, inf the robust classifier), got {gamma}")
    return 1.0 if gamma == math.inf else gamma / (1 + gamma)


def gamma_from_alpha(alpha: Same) -> Same:
    """Return gamma = alpha / (1 - alpha), the inverse of `alpha_from_gamma`; inf at alpha = 1."""
    if isinstance(alpha, Tensor):
        return alpha / (1 - alpha)
    if not 0 <= alpha <= 1:
        raise ValueError(f"expected alpha in [0, 1] (0 is the standard, 1 the robust classifier), got {alpha}")
    return math.inf if alpha == 1 else alpha / (1 - alpha)


def mix_normalised(
    g_logits: Tensor, h_logits: Tensor, gamma: Numbers, r: Tensor, on: OutputKind = "probabilities"
) -> Tensor:
    """Return (g_i + gamma R_i h_i) / (1 + gamma R_i), eq. adap_sm_3, with R = `r` [N, C], as logits.

    Eq. adap_sm_2 is the case R_i = ||grad g_i||_{p*}. With `on="probabilities"` the logarithm is returned.
    """
    alpha = alpha_from_gamma(gamma * r)
    check_choice("on", on, get_args(OutputKind))
    if on == "logits":
        return (1 - alpha) * g_logits + alpha * h_logits
    return mix_log_probabilities(log_probabilities(g_logits), log_probabilities(h_logits), alpha)


def mix_sum(g_logits: Tensor, h_logits: Tensor, gamma: Numbers, r: Tensor, on: OutputKind = "probabilities") -> Tensor:
    """Return g_i + gamma R_i h_i, eq. adap_sm_1, with R = `r` [N, C]; in the paper R_i = ||grad g_i||_{p*}."""
    check_choice("on", on, get_args(OutputKind))
    if on == "logits":
        return g_logits + gamma * r * h_logits
    return mix_normalised(g_logits, h_logits, gamma, r, on) + torch.log1p(gamma * r)
