"""Smoothing on a plane, where the votes, the mean probabilities and the true radius are known exactly."""

import numpy as np
import pytest
import torch
from half_spaces import HalfSpaces, ReturnsNaN, vote_share
from scipy.special import expit, ndtri
from scipy.stats import binom
from torch import nn

from adaptive_smoothing.certification.bounds import clopper_pearson
from adaptive_smoothing.certification.options import SmoothingOptions
from adaptive_smoothing.certification.sampling import BLOCK
from adaptive_smoothing.certification.smoothing import Smoothing, reachable_radius
from adaptive_smoothing.models.smoothed import SmoothedClassifier

SIGMA = 0.5


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces()


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.05, 0.2, 0.5, 0.9, -0.4]))


INDEX = torch.arange(5)


def smoothing(base, *, hard=True, alpha=1.0, **options):
    chosen = SmoothingOptions(**{"samples": 4000, **options})
    return Smoothing(robust=SmoothedClassifier(base, SIGMA, hard=hard), alpha=alpha, options=chosen)


# --- certificates -------------------------------------------------------------------------------------


def test_hard_votes_give_the_radius_of_their_clopper_pearson_bound_below_the_true_one(plane, images):
    found = smoothing(plane).certify(images, INDEX)
    assert found["robust_class"].tolist() == [0, 0, 0, 0, 1]
    wrong = np.round((1 - found["probabilities"].max(1)) * 4000)
    error = clopper_pearson(wrong, 4000, 0.001)
    assert found["radius"] == pytest.approx(np.maximum(-SIGMA * ndtri(error), 0), abs=1e-6)
    truth = np.abs(plane.distance(images).numpy())
    assert (found["radius"] <= truth).all() and (found["radius"][1:] > 0.75 * truth[1:]).all()
    assert found["estimate"] == pytest.approx(truth, abs=0.1)


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.95])
def test_a_mixture_has_exactly_the_radius_in_which_the_worst_g_cannot_win(plane, alpha):
    """Beyond sigma (Phi^-1(p) - Phi^-1(1 / (2 alpha))) a g that is certain of the other class does win."""
    distance = 0.9
    exact = distance - SIGMA * ndtri(1 / (2 * alpha))
    for moved, wins in ((exact - 1e-3, False), (exact + 1e-3, True)):
        share = vote_share(distance - moved, SIGMA)
        assert (alpha * (1 - share) + (1 - alpha) > alpha * share) == wins
    found = smoothing(plane, alpha=alpha, samples=20_000).certify(plane.at(torch.tensor([distance])), INDEX[:1])
    assert exact - 0.2 < found["radius"][0] <= exact
    papers = smoothing(plane, alpha=alpha, samples=20_000, theorem="paper")
    assert papers.certify(plane.at(torch.tensor([distance])), INDEX[:1])["radius"][0] < found["radius"][0]


def test_bounds_on_soft_votes_are_several_standard_errors_below_the_mean(plane, images):
    """The mean of the softmax, expit(20 (distance + noise)), and its variance are known by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    values = expit(20 * (plane.distance(images).abs().numpy()[:, None] + SIGMA * nodes))
    mean, square = (values**power @ weights / weights.sum() for power in (1, 2))
    deviation = np.sqrt((square - mean**2) / 4000)
    found = smoothing(plane, hard=False).certify(images, INDEX)
    assert found["probabilities"].max(1) == pytest.approx(mean, abs=4 * deviation.max())
    # A failure probability of 0.001, half of it for each of the two classes, is 3.3 standard errors of a normal mean.
    behind = (found["probabilities"].max(1) - found["lower"]) / deviation
    assert (behind > 3.2).all() and (behind < 8).all()
    assert (found["lower"] < mean).all() and (found["upper"] > 1 - mean).all()


def test_a_split_failure_probability_helps_an_unconfident_h():
    class Spread(nn.Module):
        """0.55 for the first class, the rest evenly."""

        def forward(self, images):
            shares = torch.tensor([0.55] + [0.05] * 9)
            return shares.log().expand(len(images), 10)

    def certified(**options):
        image = torch.full((1, 3, 4, 4), 0.5)
        return smoothing(Spread().eval(), hard=False, alpha=0.8, samples=2000, **options).certify(image, INDEX[:1])

    complement, split = (certified(runner_up=kind) for kind in ("complement", "split"))
    assert complement["radius"] == 0 and split["radius"] > 0.1
    assert split["upper"] < 0.1 < complement["upper"]
    assert certified()["radius"] == split["radius"]


def test_every_class_has_its_part_of_the_failure_probability(plane, images):
    """With two classes, each bound is that of the complement with half of the failure probability."""
    split, half = (
        smoothing(plane, hard=False, runner_up=kind, failure_probability=chance).certify(images, INDEX)
        for kind, chance in (("split", 0.01), ("complement", 0.005))
    )
    assert split["lower"].tolist() == half["lower"].tolist()
    whole = smoothing(plane, hard=False, runner_up="complement", failure_probability=0.01).certify(images, INDEX)
    assert (split["lower"] < whole["lower"]).all()


def test_the_default_bound_and_runner_up_follow_from_the_votes(plane):
    hard = smoothing(plane)
    assert hard.settings["runner-up"] == "complement" and hard.settings["bound"] == "clopper-pearson"
    soft = smoothing(plane, hard=False)
    assert soft.settings["runner-up"] == "split" and soft.settings["bound"] == "betting"
    assert smoothing(plane, hard=False, radius=0.1).settings["runner-up"] == "complement"


def test_a_compiled_base_gets_the_same_noise(plane, images, monkeypatch):
    calls = []

    def compiled(base, **options):
        calls.append(options)
        return lambda noisy: base(noisy)

    plain = smoothing(plane).certify(images, INDEX)
    monkeypatch.setattr(torch, "compile", compiled)
    method = smoothing(plane, compiled=True)
    assert np.array_equal(method.certify(images, INDEX)["probabilities"], plain["probabilities"])
    # Once, for batches of any size.
    assert calls == [{"dynamic": True}]
    assert method.settings["compiled"] and not smoothing(plane).settings["compiled"]


# --- stopping early -----------------------------------------------------------------------------------


def test_a_wanted_radius_is_decided_with_few_samples(plane):
    distances = torch.linspace(0.02, 0.9, 12)
    images, index = plane.at(distances), torch.arange(12)
    wanted = 0.3
    early = smoothing(plane, radius=wanted, samples=8000).certify(images, index)
    full = smoothing(plane, samples=8000).certify(images, index)
    reached = early["radius"] >= wanted
    assert not reached[distances.numpy() < wanted].any()
    assert reached[distances.numpy() > wanted + 0.1].all()
    assert (reached == (full["radius"] >= wanted)).mean() >= 11 / 12
    assert early["samples"].sum() < full["samples"].sum() / 4


def test_a_radius_out_of_reach_is_not_sampled_for(plane, images):
    found = smoothing(plane, alpha=0.6, theorem="paper", radius=5.0).certify(images, INDEX)
    assert (found["radius"] == 0).all() and (found["samples"] == BLOCK).all()
    # The prediction of h is that of the samples that chose its class.
    assert found["probabilities"].argmax(1).tolist() == [0, 0, 0, 0, 1]


def test_a_radius_that_was_decided_is_reported(plane):
    """Also where the bound, which is rounded up to a grid, is a little worse than the decision."""
    for wanted in np.linspace(0.3, 0.8, 7):
        found = smoothing(plane, radius=wanted, samples=2000).certify(plane.at(torch.full((2,), 3.0)), INDEX[:2])
        assert (found["radius"] >= wanted).all()


def test_early_stopping_fails_as_rarely_as_it_promises(plane):
    """False certificates of images whose true radius is just below the wanted one; repeated Clopper-Pearson fails."""
    images, index = plane.at(torch.full((150,), 0.2999)), torch.arange(150)
    found = smoothing(plane, radius=0.3, samples=1000, failure_probability=0.2).certify(images, index)
    assert 0 < (found["radius"] >= 0.3).sum() <= binom.ppf(1 - 1e-4, 150, 0.2)


# --- the largest radius that samples can reach --------------------------------------------------------


@pytest.mark.parametrize(
    ("hard", "alpha", "options"),
    [
        (True, 1.0, {}),
        (True, 0.8, {"failure_probability": 0.01}),
        (True, 0.8, {"theorem": "paper"}),
        (True, 0.9, {"radius": 0.1}),
        (False, 1.0, {}),
        (False, 0.8, {"runner_up": "complement"}),
    ],
)
def test_unanimous_samples_reach_the_largest_radius(plane, hard, alpha, options):
    method = smoothing(plane, hard=hard, alpha=alpha, samples=200, **options)
    found = method.certify(plane.at(torch.tensor([50.0])), INDEX[:1])["radius"][0]
    reach = reachable_radius({**method.settings, "alpha": alpha}, 2)
    # Early stopping may end before all samples are drawn.
    assert found == pytest.approx(reach, rel=1e-9) if "radius" not in options else 0.1 <= found <= reach


def test_the_largest_radius_of_unanimous_votes_has_a_closed_form(plane):
    """All of n votes: the error is at most 1 - chance^(1 / n); a mixture loses Phi^-1(1 / (2 alpha))."""
    settings = {**smoothing(plane, samples=300).settings, "alpha": 0.8}
    closed = SIGMA * (ndtri(0.001 ** (1 / 300)) - ndtri(1 / 1.6))
    assert reachable_radius(settings, 2) == pytest.approx(closed, rel=1e-6)
    assert reachable_radius({"method": "lipschitz"}, 2) == np.inf
    assert reachable_radius({**settings, "bound": "bernstein"}, 2) == np.inf  # stored by an earlier version


# --- impossible input ---------------------------------------------------------------------------------


def test_alpha_is_at_least_one_half(plane):
    with pytest.raises(ValueError, match="alpha in"):
        smoothing(plane, alpha=0.4)


@pytest.mark.parametrize("hard", [True, False])
def test_nan_is_refused(hard, images):
    with pytest.raises(ValueError, match="NaN"):
        smoothing(ReturnsNaN().eval(), hard=hard, samples=10).certify(images, INDEX)


def test_a_base_needs_two_classes(images):
    class OneClass(nn.Module):
        def forward(self, images):
            return images.new_zeros(len(images), 1)

    with pytest.raises(ValueError, match="two classes"):
        smoothing(OneClass().eval(), hard=False, samples=10).certify(images, INDEX)
