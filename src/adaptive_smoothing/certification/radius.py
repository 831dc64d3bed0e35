"""The radius in which a mixture (1 - alpha) g + alpha h cannot change its answer, whatever g is: one function a
theorem.

Probabilities are those of h, after its softmax. They may be numbers or arrays. Whoever knows them only between bounds
passes the lower bound of the first class and upper bounds of the others, since every radius here grows with the one and
shrinks with the others. Everything is float64 and rounded down; where nothing can be promised the radius is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

Numbers = Any  # a float or an array of them

# More than float64 and its special functions are off by, and less than anybody would miss of a radius.
ROUNDING = 1e-9
# Halvings of an interval of a few sigma, down to what float64 can tell apart.
HALVINGS = 60


def needed_margin(alpha: Numbers) -> np.ndarray:
    """(1 - alpha) / alpha: what h has to be ahead by (lem:certified_radius).

    If for all delta of norm at most r, h_y(x + delta) >= h_i(x + delta) + (1 - alpha) / alpha for all i != y, then the
    mixture with alpha in [1/2, 1] says y at all x + delta: g can take at most 1 - alpha from y's lead, of which
    alpha (1 - alpha) / alpha is left. A learned alpha(x) needs what the lower end of its range does.
    """
    alpha = _checked(alpha, "alpha")
    if not ((alpha >= 0.5) & (alpha <= 1)).all():
        raise ValueError(
            f"expected alpha in [1/2, 1], got {_range(alpha)}: below 1/2 the weight of g outvotes the surest h, and "
            "nothing can be certified"
        )
    return (1 - alpha) / alpha


def needed_alpha(margin: Numbers) -> np.ndarray:
    """1 / (1 + margin): the smallest alpha for an h that is robust with this margin (lem:certified_radius)."""
    margin = _checked(margin, "margin")
    if not ((margin >= 0) & (margin <= 1)).all():
        raise ValueError(f"expected margins of probabilities, in [0, 1], got {_range(margin)}")
    return 1 / (1 + margin)


def lipschitz_radius(
    top: Numbers, others: Numbers, top_constant: Numbers, other_constants: Numbers, alpha: Numbers = 1.0
) -> np.ndarray:
    """min_i (alpha (h_y - h_i) + alpha - 1) / (alpha (L_y + L_i)), in the norm of the constants (thm:certified_radius).

    L_i is the Lipschitz constant of the *probability* h_i, with the softmax and whatever scales the logits in it. It
    may be global, or local: then the statement is about perturbations inside the region of the constants only. At
    alpha = 1 it is the classical Lipschitz radius, below 1 / (1 + h_y - h_i) it is 0. Classes are the last axis of
    `others` and `other_constants`.
    """
    margin = needed_margin(alpha)
    top, others = _probabilities(top, "top"), _probabilities(others, "others")
    if not others.ndim or not others.shape[-1]:
        raise ValueError("expected the probabilities of at least one other class, got none: one class has no rival")
    lead = top[..., None] - others - margin[..., None]
    return _down((lead / (_constants(top_constant)[..., None] + _constants(other_constants))).min(-1))


def lipschitz_margin_radius(doubt: Numbers, logit_constant: Numbers, alpha: Numbers = 1.0) -> np.ndarray:
    """(2 / M) (artanh(gap) - artanh((1 - alpha) / alpha)), for h that is the softmax of Lipschitz logits z.

    `doubt` is 1 - gap = 1 - (h_y - max_i h_i), and every z_y - z_k is M-Lipschitz. Not in the paper; with one constant
    for all pairs never below its bound. For d = h_y - h_i the gradient of d in z is a combination of z_y - z_k with
    weights of sum h_y (1 - d) <= (1 - d^2) / 2, so artanh(d) is M/2-Lipschitz wherever d >= 0. The mixture only costs a
    constant that is the same for all x. Of a gap near 1 float64 keeps no digits, of the doubt all.
    """
    needed_margin(alpha)
    doubt, constant = _checked(doubt, "doubt"), _constants(logit_constant)
    if not ((doubt >= 0) & (doubt <= 2)).all():
        raise ValueError(f"expected doubts 1 - gap in [0, 2], got {_range(doubt)}")
    doubt = np.maximum(doubt, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):
        # 2 artanh(1 - doubt) and -2 artanh((1 - alpha) / alpha); at alpha = 1/2 nothing is enough.
        ahead = np.log((2 - doubt) / doubt) + np.log(2 * np.asarray(alpha, dtype=np.float64) - 1)
    return _down(ahead / constant)


def logit_radius(lead: Numbers, logit_constants: Numbers) -> np.ndarray:
    """min_i (z_y - z_i) / M_yi: the classical radius of h alone, whose z_y - z_i is M_yi-Lipschitz; i is the last
    axis."""
    lead, constants = _checked(lead, "lead"), _constants(logit_constants)
    if not lead.shape[-1:] or not lead.shape[-1]:
        raise ValueError("expected the lead over at least one other class, got none: one class has no rival")
    return _down((lead / constants).min(-1))


def smoothing_radius(top: Numbers, runner_up: Numbers, sigma: Numbers, alpha: Numbers = 1.0) -> np.ndarray:
    """sigma / 2 (Phi^-1(alpha h_y) - Phi^-1(alpha h_y' + 1 - alpha)), in L2 (thm:randomized_smoothing).

    h is the mean of a classifier's probabilities, or votes, under noise N(0, sigma^2). At alpha = 1 it is the radius of
    Cohen et al. 2019. It never exceeds sigma Phi^-1(alpha), however sure h is; see `smoothing_margin_radius`.
    """
    needed_margin(alpha)
    alpha = np.asarray(alpha, dtype=np.float64)
    top, runner_up, sigma = _smoothed(top, runner_up, sigma)
    return _down(sigma / 2 * (ndtri(alpha * top) - ndtri(alpha * runner_up + (1 - alpha))))


def smoothing_margin_radius(top: Numbers, runner_up: Numbers, sigma: Numbers, alpha: Numbers = 1.0) -> np.ndarray:
    """The largest r with Phi(Phi^-1(h_y) - r / sigma) - Phi(Phi^-1(h_y') + r / sigma) >= (1 - alpha) / alpha, in L2.

    Not in the paper, and never below its bound, which asks the same of functions with values in [0, alpha] as if they
    had them in [0, 1]. Lemma 2 of Salman et al. 2019 holds for h_y and h_i themselves, and then the lemma about
    margins says the rest. Where h_y' is only known to be at most 1 - h_y it is sigma (Phi^-1(h_y) - Phi^-1(1 / (2
    alpha))): mixing costs a constant that is the same for all x.
    """
    margin = needed_margin(alpha)
    top, runner_up, sigma = _smoothed(top, runner_up, sigma)
    first, second, margin = np.broadcast_arrays(ndtri(top), ndtri(runner_up), margin)
    low, high = np.zeros(first.shape), np.maximum((first - second) / 2, 0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = ndtr(first - middle) - ndtr(second + middle) >= margin
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return _down(sigma * low)


def smoothed_lipschitz_radius(top: Numbers, runner_up: Numbers, sigma: Numbers, alpha: Numbers = 1.0) -> np.ndarray:
    """thm:certified_radius for a smoothed h, with the constant that the paper takes: what its fig:certified_pareto
    shows."""
    constant = 2 * gaussian_lipschitz(sigma)
    return lipschitz_radius(top, np.asarray(runner_up)[..., None], constant, constant[..., None], alpha)


def gaussian_lipschitz(sigma: Numbers) -> np.ndarray:
    """1 / (sigma sqrt(2 pi)): the L2 Lipschitz constant of a mean, under noise N(0, sigma^2), of numbers in [0, 1].

    Phi(Phi^-1(p) - r / sigma) falls the fastest at p = 1/2. The paper takes twice this, as numbers in [-1, 1] need.
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    _check_sigma(sigma)
    return 1 / (sigma * np.sqrt(2 * np.pi))


# --- what is a probability --------------------------------------------------------------------------------------------


def _smoothed(top: Numbers, runner_up: Numbers, sigma: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """as:randomized_smoothing: no class is certain or impossible. What float64 rounded to 1 is taken to be less."""
    sigma = np.asarray(sigma, dtype=np.float64)
    _check_sigma(sigma)
    top, runner_up = _probabilities(top, "top"), _probabilities(runner_up, "runner_up")
    return _below_one(top), np.maximum(runner_up, np.finfo(np.float64).tiny), sigma


def _constants(value: Numbers) -> np.ndarray:
    value = _checked(value, "constants")
    if not ((value > 0) & np.isfinite(value)).all():
        raise ValueError(f"expected positive, finite Lipschitz constants, got {_range(value)}")
    return value


def _check_sigma(sigma: np.ndarray) -> None:
    if not ((sigma > 0) & np.isfinite(sigma)).all():
        raise ValueError(f"expected sigma > 0, got {_range(sigma)}: without noise there is nothing to certify with")


def _probabilities(value: Numbers, name: str) -> np.ndarray:
    value = _checked(value, name)
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError(f"expected probabilities in [0, 1] as {name}, got {_range(value)}: pass softmax outputs of h")
    return value


def _checked(value: Numbers, name: str) -> np.ndarray:
    value = np.asarray(value, dtype=np.float64)
    if np.isnan(value).any():
        raise ValueError(f"expected numbers as {name}, got NaN: look for the image or the layer that made it")
    return value


def _below_one(value: np.ndarray) -> np.ndarray:
    return np.minimum(value, np.nextafter(1.0, 0.0))


def _down(radius: np.ndarray) -> np.ndarray:
    """Rounded down, and 0 where it is negative."""
    return np.maximum(radius * (1 - ROUNDING) - ROUNDING, 0.0)


def _range(value: np.ndarray) -> str:
    low, high = value.min(initial=np.inf), value.max(initial=-np.inf)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
