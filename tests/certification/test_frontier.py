"""Reading one certification at many alphas gives what certifying at each of them gives."""

import numpy as np
import pytest
from half_spaces import AgainstMargin, HalfSpaces

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certificates import (
    Frontier,
    build_frontier,
    clean_accuracies,
    largest_alpha,
    with_alpha,
)


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=4.0)


@pytest.fixture(scope="module")
def data(plane):
    return plane.data(12)


def certified(plane, data, alpha, *, sigma=0.5, hard=True, **options):
    h = plane if sigma is None else ads.SmoothedClassifier(plane, sigma, hard=hard)
    options = {} if sigma is None else {"samples": 500, **options}
    return ads.certify(ads.MixedClassifier(AgainstMargin(), h, alpha=alpha), data, **options)


@pytest.mark.parametrize("sigma", [0.5, None])
def test_another_alpha_needs_no_other_samples(plane, data, sigma):
    once = certified(plane, data, 1.0, sigma=sigma)
    for alpha in (0.6, 0.85):
        again, read = certified(plane, data, alpha, sigma=sigma), with_alpha(once, alpha)
        assert np.array_equal(read.rows["prediction"], again.rows["prediction"])
        assert read.rows["radius"] == pytest.approx(again.rows["radius"], abs=1e-4)
        assert np.array_equal(read.certified, again.certified)


def test_the_papers_theorem_of_a_lipschitz_h_is_read_again(plane, data):
    once = certified(plane, data, 1.0, sigma=None)
    mixed = ads.MixedClassifier(AgainstMargin(), plane, alpha=0.8)
    papers = ads.certify(mixed, data, theorem="paper")
    assert with_alpha(once, 0.8, "paper").rows["radius"] == pytest.approx(papers.rows["radius"], abs=1e-4)
    assert papers.certified.any()
    with pytest.raises(ValueError, match="margin, paper"):
        with_alpha(once, 0.8, "lipschitz")


def test_the_papers_theorem_is_read_from_the_same_samples(plane, data):
    once = certified(plane, data, 1.0)
    papers = with_alpha(once, 0.8, "paper")
    assert papers.rows["radius"] == pytest.approx(certified(plane, data, 0.8, theorem="paper").rows["radius"], abs=1e-4)
    assert (papers.rows["radius"] <= with_alpha(once, 0.8).rows["radius"] + 1e-9).all()


def test_alpha_is_the_largest_with_the_wanted_accuracy(plane, data):
    class Perfect(HalfSpaces):
        """Right about everything, where the plane in `wrong` is moved."""

        def forward(self, images):
            return 1e3 * super().forward(images)

    class Wrong(HalfSpaces):
        def distance(self, images):
            return super().distance(images) - 0.3

    mixed = ads.MixedClassifier(Perfect(), Wrong(steep=4.0), alpha=1.0)
    found = ads.certify(mixed, data)
    alphas = np.linspace(0.5, 1, 101)
    accuracies = clean_accuracies(found, alphas)
    assert accuracies[0] == 1 > accuracies[-1]
    chosen = largest_alpha(found, 0.9, alphas)
    place = int(np.flatnonzero(np.isclose(alphas, chosen))[0])
    assert accuracies[place] >= 0.9 > accuracies[place + 1 :].max()
    assert largest_alpha(found, 1.1, alphas) is None


def test_the_frontier_is_the_best_at_each_radius(plane, data):
    members = {f"sigma {sigma}": certified(plane, data, 1.0, sigma=sigma) for sigma in (0.1, 1.0)}
    frontier = Frontier(members, 1.0)
    at = [0.0, 0.1, 0.3, 0.6]
    best, whose = frontier.best(at)
    for k, radius in enumerate(at):
        each = {name: member.accuracy(radius) for name, member in members.items()}
        assert best[k] == max(each.values()) and each[whose[k]] == best[k]
    assert frontier.best([1e3]) == (0, [None])
    assert frontier.radii[0] == 0 and (np.diff(frontier.radii) > 0).all()
    built = build_frontier({name: (member, member) for name, member in members.items()}, 0.5)
    assert set(built.members) == set(members)
    with pytest.raises(ValueError, match="the best is"):
        build_frontier({name: (member, member) for name, member in members.items()}, 1.01)


def test_what_stopped_early_or_is_in_another_norm_cannot_be_read_again(plane, data):
    with pytest.raises(ValueError, match="stopped at a radius"):
        with_alpha(certified(plane, data, 1.0, radius=0.1), 0.8)
    with pytest.raises(ValueError, match="L2"):
        with_alpha(ads.certify(plane, data, norm="Linf"), 0.8)


@pytest.mark.parametrize("alpha", [0.3, 1.5, float("nan")])
def test_an_alpha_that_means_nothing_is_refused(plane, data, alpha):
    with pytest.raises(ValueError, match="alpha"):
        with_alpha(certified(plane, data, 1.0), alpha)
