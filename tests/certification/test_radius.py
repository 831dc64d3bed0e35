"""Radii against closed forms, limits, and the formulas of the paper."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from adaptive_smoothing.certification import radius
from adaptive_smoothing.certification.bounds import clopper_pearson

ALPHAS = np.array([0.5, 0.55, 0.7, 0.79, 0.9, 0.99, 1.0])


def test_the_margin_that_the_lemma_needs():
    assert radius.needed_margin(1.0) == 0 and radius.needed_margin(0.5) == 1
    assert radius.needed_margin(0.8) == pytest.approx(0.25)
    assert radius.needed_alpha(radius.needed_margin(ALPHAS)) == pytest.approx(ALPHAS)


def test_with_that_margin_no_g_changes_the_prediction_and_with_less_some_g_does():
    for alpha in ALPHAS[:-1]:
        margin = radius.needed_margin(alpha)
        for change, robust in ((1e-9, True), (-1e-6, False)):
            h = np.array([(1 + margin + change) / 2, (1 - margin - change) / 2])
            worst_g = np.array([0.0, 1.0])
            mixed = (1 - alpha) * worst_g + alpha * h
            assert (mixed[0] >= mixed[1] - 1e-12) == robust


# --- Lipschitz ----------------------------------------------------------------------------------------


def test_lipschitz_radius_is_the_formula_of_the_theorem():
    h, constants, alpha = np.array([0.7, 0.2, 0.1]), np.array([1.0, 3.0, 0.5]), 0.8
    by_hand = min((alpha * (h[0] - h[i]) + alpha - 1) / (alpha * (constants[0] + constants[i])) for i in (1, 2))
    assert radius.lipschitz_radius(h[0], h[1:], constants[0], constants[1:], alpha) == pytest.approx(by_hand, abs=1e-8)


def test_lipschitz_radius_at_the_ends_of_alpha():
    classical = (0.7 - 0.2) / (1.5 + 1.5)
    assert radius.lipschitz_radius(0.7, [0.2], 1.5, [1.5], 1.0) == pytest.approx(classical, abs=1e-8)
    threshold = 1 / (1 + 0.5)
    assert radius.lipschitz_radius(0.7, [0.2], 1.5, [1.5], threshold - 1e-6) == 0
    assert radius.lipschitz_radius(0.7, [0.2], 1.5, [1.5], threshold + 1e-3) > 0


def test_lipschitz_margin_radius_of_two_classes_is_the_distance_in_logits():
    """Logits +-z/2 with z M-Lipschitz: the mixture is robust as long as tanh(z/2) is at least the margin."""
    for alpha in ALPHAS[1:]:
        for z in (0.5, 2.0, 6.0):
            exact = max(0.0, (z - 2 * np.arctanh(radius.needed_margin(alpha))) / 3.0)
            assert radius.lipschitz_margin_radius(1 - np.tanh(z / 2), 3.0, alpha) == pytest.approx(exact, abs=1e-7)


def test_lipschitz_margin_radius_is_never_below_the_papers():
    rng = np.random.default_rng(0)
    for _ in range(300):
        h = -np.sort(-rng.dirichlet(np.full(rng.integers(2, 11), 0.3)))
        alpha, constant = rng.uniform(0.5, 1), rng.uniform(0.1, 20)
        # Probabilities of a softmax whose differences of logits are M-Lipschitz have constants of M / 4.
        papers = radius.lipschitz_radius(h[0], h[1:], constant / 4, np.full(len(h) - 1, constant / 4), alpha)
        assert radius.lipschitz_margin_radius(1 - (h[0] - h[1]), constant, alpha) >= papers - 1e-12


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_artanh_of_the_gap_has_the_lipschitz_constant_of_the_proof(classes):
    """Its gradient is at most half the largest difference of the directions of the logits."""
    rng = np.random.default_rng(classes)
    for _ in range(200):
        logits, directions = rng.normal(scale=4, size=classes), rng.normal(size=(classes, 5))
        order = np.argsort(-logits)
        logits, directions = logits[order], directions[order]
        h = np.exp(logits - logits.max())
        h /= h.sum()
        gap = h[0] - h[1]
        slope = np.diag(h) - np.outer(h, h)
        gradient = (slope[0] - slope[1]) @ directions / (1 - gap**2)
        largest = np.linalg.norm(directions[:1] - directions, axis=1).max()
        assert np.linalg.norm(gradient) <= largest / 2 * (1 + 1e-9)


def test_logit_radius_is_the_smallest_of_the_leads_over_their_constants():
    assert radius.logit_radius([2.0, 3.0], [1.0, 4.0]) == pytest.approx(0.75)
    assert radius.logit_radius([-1.0, 3.0], [1.0, 4.0]) == 0


# --- smoothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [radius.smoothing_radius, radius.smoothing_margin_radius])
def test_smoothing_radii_at_alpha_one_are_cohens(function):
    top, second = np.array([0.6, 0.9, 0.99993]), np.array([0.3, 0.1, 0.00007])
    assert function(top, second, 0.5) == pytest.approx(0.25 * (ndtri(top) - ndtri(second)), abs=1e-8)
    assert function(0.95, 0.05, 0.25) == pytest.approx(0.25 * ndtri(0.95), abs=1e-8)


def test_the_radius_of_100_000_unanimous_votes_is_that_of_the_literature():
    error = clopper_pearson(np.array(0), 100_000, 0.001)
    assert round(float(radius.smoothing_radius(1 - error, error, 1.0)), 4) == 3.8115
    assert round(float(radius.smoothing_margin_radius(1 - error, error, 1.0)), 4) == 3.8115


def test_the_papers_smoothing_radius_is_its_formula():
    top, second, sigma, alpha = 0.8, 0.15, 0.5, 0.79
    by_hand = sigma / 2 * (ndtri(alpha * top) - ndtri(alpha * second + 1 - alpha))
    assert radius.smoothing_radius(top, second, sigma, alpha) == pytest.approx(by_hand, abs=1e-8)
    assert radius.smoothing_radius(1.0, 0.0, sigma, alpha) == pytest.approx(sigma * ndtri(alpha), abs=1e-6)


def test_the_margin_radius_of_two_classes_is_a_constant_less():
    for alpha in ALPHAS[1:]:
        for top in (0.7, 0.95, 0.999):
            exact = max(0.0, ndtri(top) - ndtri(1 / (2 * alpha)))
            assert radius.smoothing_margin_radius(top, 1 - top, 1.0, alpha) == pytest.approx(exact, abs=1e-7)


def test_the_margin_radius_is_never_below_the_papers_and_solves_its_equation():
    rng = np.random.default_rng(0)
    top = rng.uniform(0.4, 0.9999, 500)
    second = (1 - top) * rng.uniform(0.1, 1, 500)
    alpha, sigma = rng.uniform(0.5, 1, 500), rng.uniform(0.1, 1, 500)
    found = radius.smoothing_margin_radius(top, second, sigma, alpha)
    assert (found >= radius.smoothing_radius(top, second, sigma, alpha) - 1e-8).all()
    some = found > 0
    margin = ndtr(ndtri(top) - found / sigma) - ndtr(ndtri(second) + found / sigma)
    assert some.sum() > 100
    assert margin[some] == pytest.approx(radius.needed_margin(alpha)[some], abs=1e-6)
    assert (margin[some] >= radius.needed_margin(alpha)[some]).all()


def test_the_constant_of_a_gaussian_mean_is_the_steepest_slope_and_half_of_the_papers():
    at = np.linspace(-3, 3, 2001)
    steepest = np.abs(np.gradient(ndtr(at / 0.5), at)).max()
    assert radius.gaussian_lipschitz(0.5) == pytest.approx(steepest, rel=1e-4)
    assert 2 * radius.gaussian_lipschitz(0.5) == pytest.approx(np.sqrt(2 / (np.pi * 0.25)))


def test_smoothing_beats_the_lipschitz_bound_of_the_same_mean():
    constant = radius.gaussian_lipschitz(0.5)
    for top in (0.6, 0.8, 0.99):
        slow = radius.lipschitz_radius(top, [1 - top], constant, [constant], 0.9)
        assert radius.smoothing_margin_radius(top, 1 - top, 0.5, 0.9) >= slow
        assert radius.smoothed_lipschitz_radius(top, 1 - top, 0.5, 0.9) == pytest.approx(slow / 2, abs=1e-8)


# --- rounding and bad input ---------------------------------------------------------------------------


def test_radii_are_rounded_down_and_never_negative():
    assert radius.smoothing_radius(0.9, 0.1, 1.0) < ndtri(0.9)
    assert radius.logit_radius([1.0], [3.0]) < 1 / 3
    assert radius.smoothing_margin_radius(0.3, 0.6, 1.0) == 0
    assert radius.smoothing_margin_radius(0.6, 0.4, 1.0, 0.5) == 0
    assert radius.lipschitz_margin_radius(0.1, 1.0, 0.5) == 0


def test_certainty_is_finite():
    assert np.isfinite(radius.smoothing_radius(1.0, 0.0, 1.0))
    assert np.isfinite(radius.lipschitz_margin_radius(0.0, 1.0, 0.6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: radius.needed_margin(0.49), "alpha in"),
        (lambda: radius.needed_margin(np.nan), "nan"),
        (lambda: radius.needed_alpha(1.2), "margins"),
        (lambda: radius.smoothing_radius(0.9, 0.1, 0.0), "sigma > 0"),
        (lambda: radius.smoothing_margin_radius(0.9, 0.1, -1.0), "sigma > 0"),
        (lambda: radius.smoothing_radius(np.nan, 0.1, 1.0), "nan"),
        (lambda: radius.smoothing_radius(1.2, 0.1, 1.0), "probabilities"),
        (lambda: radius.smoothing_radius(0.9, 0.1, 1.0, 0.3), "alpha in"),
        (lambda: radius.lipschitz_radius(0.9, [], 1.0, []), "one class"),
        (lambda: radius.lipschitz_radius(0.9, [0.1], 0.0, [1.0]), "positive"),
        (lambda: radius.logit_radius([], []), "one class"),
        (lambda: radius.lipschitz_margin_radius(0.5, np.inf), "finite"),
        (lambda: radius.gaussian_lipschitz(0.0), "sigma > 0"),
    ],
)
def test_impossible_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
