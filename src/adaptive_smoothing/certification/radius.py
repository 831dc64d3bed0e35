"""Certified radii of a mixture (1 - alpha) g + alpha h for any g: one function per theorem.

Every function returns the radius inside which the mixture predicts y, the class that h predicts at x. `alpha = 1` gives
the radius of h alone. Arguments are numbers or arrays, which are broadcast.

Probabilities are those of h, after its softmax. If only bounds are known, pass a lower bound on the probability of y
and upper bounds on the others: every radius grows with the former and shrinks with the latter. Results are float64,
rounded down, and 0 where nothing can be certified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from adaptive_smoothing.certification import rounding

# Bisection steps on an interval of a few sigma or of probabilities, down to the resolution of float64.
BISECTIONS = 60
# The smallest and the largest positive, finite float64.
POSITIVE = (np.nextafter(0.0, 1.0), np.finfo(np.float64).max)


def needed_margin(alpha: ArrayLike) -> np.ndarray:
    """Return (1 - alpha) / alpha, the margin with which h has to be robust (lem:certified_radius).

    Guarantee: if h_y(x + delta) >= h_i(x + delta) + (1 - alpha) / alpha for all i != y and all delta of norm at most r,
    then the mixture with alpha in [1/2, 1] predicts y at all x + delta.

    Proof: g can reduce the lead of y by at most 1 - alpha, and alpha h contributes at least alpha (1 - alpha) / alpha.
    For a learned alpha(x), pass the lower end of its range.
    """
    alpha = check_alpha(alpha)
    return (1 - alpha) / alpha


def needed_alpha(margin: ArrayLike) -> np.ndarray:
    """Return 1 / (1 + margin), the smallest alpha for an h that is robust with this margin (lem:certified_radius)."""
    return 1 / (1 + _checked(margin, 0, 1, "margins in [0, 1]", "pass differences of probabilities of h"))


def lipschitz_radius(
    top: ArrayLike, others: ArrayLike, top_constant: ArrayLike, other_constants: ArrayLike, alpha: ArrayLike = 1.0
) -> np.ndarray:
    """Return min_i (alpha (h_y - h_i) + alpha - 1) / (alpha (L_y + L_i)) (thm:certified_radius).

    Guarantee: if every probability h_i is L_i-Lipschitz in some norm, the mixture predicts y inside this radius in that
    norm. With local constants the guarantee covers perturbations inside their region only. At alpha = 1 this is the
    classical Lipschitz radius; below alpha = 1 / (1 + h_y - h_i) it is 0.

    Args:
        others: probabilities of the other classes, on the last axis.
        top_constant: L_y, the constant of the probability: it includes the softmax and any scale of the logits.
        other_constants: L_i, in the order of `others`.
    """
    margin = needed_margin(alpha)
    lead = _probabilities(top)[..., None] - _probabilities(others) - margin[..., None]
    return _smallest_ratio(lead, _constants(top_constant)[..., None] + _constants(other_constants))


def lipschitz_margin_radius(gap_complement: ArrayLike, logit_constant: ArrayLike, alpha: ArrayLike = 1.0) -> np.ndarray:
    """Return (2 / M) (artanh(gap) - artanh((1 - alpha) / alpha)) (not in the paper; implies its bound).

    Guarantee: if h is the softmax of logits z and every z_y - z_k is M-Lipschitz, the mixture predicts y inside this
    radius. It is never smaller than thm:certified_radius with one constant for all pairs.

    Proof: let d = h_y - h_i. The gradient of d is a combination of the gradients of the z_y - z_k, with weights of sum
    h_y (1 - d) <= (1 - d^2) / 2. So artanh(d) is M/2-Lipschitz wherever d >= 0, and lem:certified_radius needs
    d >= (1 - alpha) / alpha. Mixing costs a constant that is the same for all x.

    Args:
        gap_complement: 1 - gap = 1 - (h_y - max_i h_i); near a gap of 1, float64 resolves this number better.
        logit_constant: M.
    """
    alpha = check_alpha(alpha)
    complement = _checked(gap_complement, 0, 2, "1 - gap in [0, 2]", "pass 1 - (h_y - max_i h_i)")
    complement = np.maximum(complement, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):
        # 2 artanh(gap) - 2 artanh((1 - alpha) / alpha); at alpha = 1/2 no gap is large enough.
        ahead = np.log((2 - complement) / complement) + np.log(2 * alpha - 1)
    return _rounded_down(ahead / _constants(logit_constant))


def logit_radius(lead: ArrayLike, logit_constants: ArrayLike) -> np.ndarray:
    """Return min_i (z_y - z_i) / M_yi, the classical radius of h alone; i is the last axis.

    Guarantee: if every difference of logits z_y - z_i is M_yi-Lipschitz, h predicts y inside this radius.
    """
    lead = _checked(lead, -np.inf, np.inf, "numbers as lead", "look for the image or the layer that made NaN")
    return _smallest_ratio(lead, _constants(logit_constants))


def _smallest_ratio(lead: np.ndarray, constants: np.ndarray) -> np.ndarray:
    if not lead.shape[-1:] or not lead.shape[-1]:
        raise ValueError("expected at least one other class, got none: one class has no rival")
    return _rounded_down((lead / constants).min(-1))


def smoothing_radius(top: ArrayLike, runner_up: ArrayLike, sigma: ArrayLike, alpha: ArrayLike = 1.0) -> np.ndarray:
    """Return sigma / 2 (Phi^-1(alpha h_y) - Phi^-1(alpha h_y' + 1 - alpha)) (thm:randomized_smoothing).

    Guarantee: if h is the mean, under noise N(0, sigma^2), of probabilities or votes of a classifier, the mixture
    predicts y inside this L2 radius. At alpha = 1 it is the radius of Cohen et al. 2019. Unlike
    `smoothing_margin_radius`, it never exceeds sigma Phi^-1(alpha), however confident h is.
    """
    alpha = check_alpha(alpha)
    top, runner_up, sigma = _smoothed(top, runner_up, sigma)
    return _rounded_down(sigma / 2 * (ndtri(alpha * top) - ndtri(alpha * runner_up + (1 - alpha))))


def smoothing_margin_radius(
    top: ArrayLike, runner_up: ArrayLike, sigma: ArrayLike, alpha: ArrayLike = 1.0
) -> np.ndarray:
    """Return the largest r with Phi(Phi^-1(h_y) - r / sigma) - Phi(Phi^-1(h_y') + r / sigma) >= (1 - alpha) / alpha.

    Guarantee: the same as that of `smoothing_radius`, which is never larger (not in the paper; implies its bound).

    Proof: apply lemma 2 of Salman et al. 2019 to h_y and h_i: inside r, h_y is at least the first term and every h_i at
    most the second. The rest is lem:certified_radius. The paper applies the lemma to alpha h_y and
    alpha h_i + 1 - alpha, and does not use that their ranges are smaller than [0, 1]. If only h_y' <= 1 - h_y is known,
    the radius is sigma (Phi^-1(h_y) - Phi^-1(1 / (2 alpha))): mixing costs a constant that is the same for all x.
    """
    margin = needed_margin(alpha)
    top, runner_up, sigma = _smoothed(top, runner_up, sigma)
    first, second, margin = np.broadcast_arrays(ndtri(top), ndtri(runner_up), margin)
    low, high = np.zeros(first.shape), np.maximum((first - second) / 2, 0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        holds = ndtr(first - middle) - ndtr(second + middle) >= margin
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return _rounded_down(sigma * low)


def smoothed_lipschitz_radius(
    top: ArrayLike, runner_up: ArrayLike, sigma: ArrayLike, alpha: ArrayLike = 1.0
) -> np.ndarray:
    """Return the radius of thm:certified_radius for a smoothed h, as fig:certified_pareto of the paper shows it.

    The Lipschitz constant is that of the paper: twice `gaussian_lipschitz`.
    """
    constant = 2 * gaussian_lipschitz(sigma)
    return lipschitz_radius(top, np.asarray(runner_up)[..., None], constant, constant[..., None], alpha)


def gaussian_lipschitz(sigma: ArrayLike) -> np.ndarray:
    """Return 1 / (sigma sqrt(2 pi)), the L2 Lipschitz constant of a mean of values in [0, 1] under noise N(0, sigma^2).

    Phi(Phi^-1(p) - r / sigma) is steepest at p = 1/2. The paper uses twice this constant, as for values in [-1, 1].
    """
    return 1 / (check_sigma(sigma) * np.sqrt(2 * np.pi))


SMOOTHING_THEOREMS: dict[str, Callable[..., np.ndarray]] = {
    "margin": smoothing_margin_radius,
    "paper": smoothing_radius,
    "lipschitz": smoothed_lipschitz_radius,
}
LIPSCHITZ_THEOREMS = ("margin", "paper")


# --- checks of the input, and rounding --------------------------------------------------------------------------------


def check_alpha(alpha: ArrayLike) -> np.ndarray:
    hint = "below 1/2 the weight of g exceeds that of h, and nothing can be certified"
    return _checked(alpha, 0.5, 1, "alpha in [1/2, 1]", hint)


def check_sigma(sigma: ArrayLike) -> np.ndarray:
    hint = "without noise nothing can be certified; for images in [0, 1] try 0.25, 0.5 or 1"
    return _checked(sigma, *POSITIVE, "sigma > 0", hint)


def _smoothed(top: ArrayLike, runner_up: ArrayLike, sigma: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities inside (0, 1), as as:randomized_smoothing demands, and sigma."""
    first, second, tiny = _probabilities(top), _probabilities(runner_up), np.finfo(np.float64).tiny
    return np.minimum(first, np.nextafter(1.0, 0.0)), np.maximum(second, tiny), check_sigma(sigma)


def _probabilities(value: ArrayLike) -> np.ndarray:
    return _checked(value, 0, 1, "probabilities in [0, 1]", "pass softmax outputs of h")


def _constants(value: ArrayLike) -> np.ndarray:
    return _checked(value, *POSITIVE, "positive, finite Lipschitz constants", "look for a layer without a bound")


def _checked(value: ArrayLike, low: float, high: float, expected: str, hint: str) -> np.ndarray:
    """Return the value as float64, or raise an error if a number is NaN or not between `low` and `high`."""
    value = np.asarray(value, dtype=np.float64)
    if not ((value >= low) & (value <= high)).all():
        least, most = f"{value.min():g}", f"{value.max():g}"
        raise ValueError(f"expected {expected}, got {least if least == most else f'{least} to {most}'}: {hint}")
    return value


def _rounded_down(radius: np.ndarray) -> np.ndarray:
    return np.maximum(radius * (1 - rounding.RADIUS) - rounding.RADIUS, 0.0)
