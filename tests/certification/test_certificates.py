"""Certificates: their summary, certificates for another alpha, and the frontier of several mixtures."""

import numpy as np
import pytest
from half_spaces import AlwaysOne

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certificates import (
    Certificates,
    Frontier,
    clean_accuracies,
    largest_alpha,
    with_alpha,
)
from adaptive_smoothing.certification.options import LipschitzOptions, SmoothingOptions


@pytest.fixture(scope="module")
def data(plane):
    return plane.data(12)


def certified(plane, data, alpha, *, sigma=0.5, **options):
    h = plane if sigma is None else ads.SmoothedClassifier(plane, sigma, hard=True)
    chosen = LipschitzOptions(**options) if sigma is None else SmoothingOptions(samples=500, **options)
    return ads.certify(ads.MixedClassifier(AlwaysOne(), h, alpha=alpha), data, options=chosen)


@pytest.fixture(scope="module")
def smoothed(plane, data):
    return certified(plane, data, 1.0)


@pytest.fixture(scope="module")
def lipschitz(plane, data):
    return certified(plane, data, 1.0, sigma=None)


def test_the_summary_agrees_with_the_rows(lipschitz):
    found, summary = lipschitz, lipschitz.summary()
    assert summary["images"] == 12 and summary["certified"]["images"] == int(found.certified.sum())
    assert summary["accuracy"][0]["certified"] == found.accuracy(0.0)
    radii, left = found.curve()
    assert left[0] == found.accuracy(0.0) and left[-1] == 0
    for radius, share in zip(radii[1:], left[:-1], strict=True):
        assert found.accuracy(radius) == pytest.approx(share)


@pytest.mark.parametrize("sigma", [0.5, None])
def test_another_alpha_needs_no_new_samples(plane, data, smoothed, lipschitz, sigma):
    once = lipschitz if sigma is None else smoothed
    for alpha in (0.6, 0.85):
        again, computed = certified(plane, data, alpha, sigma=sigma), with_alpha(once, alpha)
        assert np.array_equal(computed.rows["prediction"], again.rows["prediction"])
        assert computed.rows["radius"] == pytest.approx(again.rows["radius"], abs=1e-4)
        assert np.array_equal(computed.certified, again.certified)


@pytest.mark.parametrize("sigma", [0.5, None])
def test_another_theorem_needs_no_new_samples(plane, data, smoothed, lipschitz, sigma):
    once = lipschitz if sigma is None else smoothed
    papers, again = with_alpha(once, 0.8, "paper"), certified(plane, data, 0.8, sigma=sigma, theorem="paper")
    assert papers.rows["radius"] == pytest.approx(again.rows["radius"], abs=1e-4)
    assert papers.certified.any()
    assert (papers.rows["radius"] <= with_alpha(once, 0.8).rows["radius"] + 1e-9).all()


def test_a_lipschitz_certification_has_no_theorem_of_smoothing(lipschitz):
    with pytest.raises(ValueError, match="margin, paper"):
        with_alpha(lipschitz, 0.8, "lipschitz")


def test_the_chosen_alpha_is_the_largest_with_the_wanted_accuracy():
    """Probabilities of the correct class of g and h: the mixture is correct up to alphas of 0.6, 0.8 and 1."""
    g, h = np.array([0.8, 0.7, 0.9]), np.array([0.3, 0.45, 0.6])
    both = {"standard_probabilities": np.stack([g, 1 - g], 1), "probabilities": np.stack([h, 1 - h], 1)}
    found = Certificates({**both, "label": np.zeros(3, dtype=int)}, {})
    alphas = np.linspace(0.505, 0.995, 50)
    assert clean_accuracies(found, np.array([0.5, 0.59, 0.61, 0.79, 0.81, 1.0])) == pytest.approx(
        [1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3]
    )
    assert largest_alpha(found, 1.0, alphas) == pytest.approx(0.595)
    assert largest_alpha(found, 0.5, alphas) == pytest.approx(0.795)
    assert largest_alpha(found, 1.1, alphas) is None


def test_the_frontier_has_the_best_accuracy_at_each_radius(plane, data, docs_tables):
    members = {f"sigma {sigma}": certified(plane, data, 1.0, sigma=sigma) for sigma in (0.1, 1.0)}
    frontier = Frontier(members, 1.0)
    at = [0.0, 0.1, 0.3, 0.6]
    best, names = frontier.best(at)
    for k, radius in enumerate(at):
        each = {name: member.accuracy(radius) for name, member in members.items()}
        assert best[k] == max(each.values()) and each[names[k]] == best[k]
    assert len(set(names)) == 2
    assert frontier.best([1e3]) == (0, [None])
    assert frontier.radii[0] == 0 and (np.diff(frontier.radii) > 0).all()
    pairs = {name: (member, member) for name, member in members.items()}
    build_frontier = docs_tables("certified_tables").build_frontier
    assert set(build_frontier(pairs, 0.5).members) == set(members)
    with pytest.raises(ValueError, match="the best is"):
        build_frontier(pairs, 1.01)


def test_another_alpha_needs_all_samples_and_l2(plane, data):
    with pytest.raises(ValueError, match="stopped at a radius"):
        with_alpha(certified(plane, data, 1.0, radius=0.1), 0.8)
    with pytest.raises(ValueError, match="L2"):
        with_alpha(ads.certify(plane, data, norm="Linf"), 0.8)


@pytest.mark.parametrize("alpha", [0.3, 1.5, float("nan")])
def test_an_impossible_alpha_is_refused(smoothed, alpha):
    with pytest.raises(ValueError, match="alpha"):
        with_alpha(smoothed, alpha)


def test_certificates_are_printed_in_one_line(smoothed):
    assert repr(smoothed).startswith(f"Certificates: clean {100 * smoothed.clean:.1f} %, certified and correct ")
    assert repr(smoothed).endswith("; 12 images") and len(repr(smoothed)) < 120
