"""Smoothing on a plane, where the votes, the true radius and its violation are known in closed form."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from half_spaces import Broken, HalfSpaces, vote_share
from scipy.special import ndtri
from torch import nn

from adaptive_smoothing.certification.bounds import clopper_pearson
from adaptive_smoothing.certification.sampling import BLOCK, Sampler, Tally
from adaptive_smoothing.certification.smoothing import Smoothing

SIGMA = 0.5


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces()


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.05, 0.2, 0.5, 0.9, -0.4]))


INDEX = torch.arange(5)


def smoothing(plane, *, hard=True, **options):
    return Smoothing(sampler=Sampler(plane, SIGMA, hard=hard), **{"samples": 4000, **options})


# --- sampling -----------------------------------------------------------------------------------------


def test_samples_do_not_depend_on_batches_neighbours_or_how_many_are_asked_for(plane, images):
    def drawn(sampler, which, *spans):
        found = {int(i): [] for i in INDEX[which]}
        for first, last in spans:
            for rows, answers in sampler.draw(images[which], INDEX[which], "estimation", first, last):
                for row, answer in zip(rows.tolist(), answers, strict=True):
                    found[int(INDEX[which][row])].append(answer)
        return {image: torch.stack(answers) for image, answers in found.items()}

    everything = slice(None)
    once = drawn(Sampler(plane, SIGMA), everything, (0, 300))
    for other in (
        drawn(Sampler(plane, SIGMA, batch_size=77), everything, (0, 300)),
        drawn(Sampler(plane, SIGMA, batch_size=1000), slice(2, 4), (0, 300)),
        drawn(Sampler(plane, SIGMA), everything, (0, 130), (130, 131), (131, 300)),
    ):
        for image, answers in other.items():
            assert answers.shape == (300, 2)
            assert torch.allclose(answers, once[image], atol=1e-6)


def test_a_compiled_base_is_asked_with_the_same_noise(plane, images, monkeypatch):
    asked = []

    def compiled(base, **options):
        asked.append(options)
        return lambda noisy: base(noisy)

    plain = smoothing(plane).certify(images, INDEX)
    monkeypatch.setattr(torch, "compile", compiled)
    method = Smoothing(sampler=Sampler(plane, SIGMA, hard=True, compiled=True), samples=4000)
    assert np.array_equal(method.certify(images, INDEX)["probabilities"], plain["probabilities"])
    # Once, for batches of any size.
    assert asked == [{"dynamic": True}]
    assert method.facts["compiled"] and not smoothing(plane).facts["compiled"]


def test_noise_differs_between_images_streams_blocks_and_seeds_and_has_the_right_size(plane):
    image = torch.full((1, 3, 4, 4), 0.5)

    def noise(index=0, stream="estimation", start=0, seed=0):
        return Sampler(plane, SIGMA, seed=seed)._noise(image, index, stream, start, start + BLOCK)

    first = noise()
    for other in (noise(index=1), noise(stream="selection"), noise(start=BLOCK), noise(seed=1)):
        assert (first - other).abs().min() > 0
    assert first.std().item() == pytest.approx(1, abs=0.05) and abs(first.mean().item()) < 0.05


def test_a_tally_counts_doubts_upwards_and_keeps_tiny_ones():
    values = Sampler(nn.Identity(), 1.0).values
    tally = Tally(torch.tensor([[0, 1]]), 3, values)
    answers = torch.tensor([[1 - 3e-6, 1e-6, 2e-6], [0.5, 0.25, 0.25]])
    tally.add(torch.zeros(2, dtype=torch.long), answers)
    top, second = (values[np.flatnonzero(tally.counts(asked)[0])] for asked in (0, 1))
    for found, exact in ((top, [3e-6, 0.5]), (second, [1e-6, 0.25])):
        assert (found >= exact).all() and found == pytest.approx(exact, rel=0.01)
    assert tally.mean() == pytest.approx(answers.double().mean(0, keepdim=True).numpy(), abs=1e-7)


# --- certificates -------------------------------------------------------------------------------------


def test_votes_give_the_radius_of_their_clopper_pearson_bound_and_never_more_than_the_truth(plane, images):
    found = smoothing(plane).certify(images, INDEX)
    assert found["robust_class"].tolist() == [0, 0, 0, 0, 1]
    wrong = np.round((1 - found["probabilities"].max(1)) * 4000)
    doubt = clopper_pearson(wrong, 4000, 0.001)
    assert found["radius"] == pytest.approx(np.maximum(-SIGMA * ndtri(doubt), 0), abs=1e-6)
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


def test_soft_means_are_bounded_too(plane, images):
    truth = smoothing(plane, hard=False, samples=50_000).certify(images, INDEX)["probabilities"].max(1)
    for bound in ("betting", "bernstein", "chernoff"):
        found = smoothing(plane, hard=False, bound=bound).certify(images, INDEX)
        assert (found["lower"] <= truth + 0.01).all() and (found["lower"] > truth - 0.1).all()


def test_a_split_failure_probability_helps_an_unsure_h():
    class Spread(nn.Module):
        """0.55 for the first class, the rest evenly."""

        def forward(self, images):
            shares = torch.tensor([0.55] + [0.05] * 9)
            return shares.log().expand(len(images), 10)

    image, sampler = torch.full((1, 3, 4, 4), 0.5), Sampler(Spread().eval(), SIGMA)
    one, other = (
        Smoothing(sampler=sampler, samples=2000, alpha=0.8, runner_up=kind).certify(image, INDEX[:1])
        for kind in ("complement", "split")
    )
    assert one["radius"] == 0 and other["radius"] > 0.1
    assert other["upper"] < 0.1 < one["upper"]
    assert Smoothing(sampler=sampler, samples=2000, alpha=0.8).certify(image, INDEX[:1])["radius"] == other["radius"]


def test_every_class_has_its_part_of_the_failure_probability(plane, images):
    """Two classes: each bound is that of the complement with half of the chance."""
    split, half = (
        smoothing(plane, hard=False, runner_up=kind, failure_probability=chance).certify(images, INDEX)
        for kind, chance in (("split", 0.01), ("complement", 0.005))
    )
    assert split["lower"].tolist() == half["lower"].tolist()
    whole = smoothing(plane, hard=False, runner_up="complement", failure_probability=0.01).certify(images, INDEX)
    assert (split["lower"] < whole["lower"]).all()


def test_what_suits_the_votes_is_the_default(plane):
    assert smoothing(plane).facts["runner-up"] == "complement" and smoothing(plane).facts["bound"] == "clopper-pearson"
    soft = smoothing(plane, hard=False)
    assert soft.facts["runner-up"] == "split" and soft.facts["bound"] == "betting"
    assert smoothing(plane, hard=False, radius=0.1).facts["runner-up"] == "complement"


# --- stopping early -----------------------------------------------------------------------------------


def test_a_wanted_radius_is_decided_with_few_samples_and_as_with_many(plane):
    distances = torch.linspace(0.02, 0.9, 12)
    images, index = plane.at(distances), torch.arange(12)
    wanted = 0.3
    early = smoothing(plane, radius=wanted, samples=20_000).certify(images, index)
    full = smoothing(plane, samples=20_000).certify(images, index)
    reached = early["radius"] >= wanted
    assert not reached[distances.numpy() < wanted].any()
    assert reached[distances.numpy() > wanted + 0.1].all()
    assert (reached == (full["radius"] >= wanted)).mean() >= 11 / 12
    assert early["samples"].sum() < full["samples"].sum() / 8


def test_a_radius_out_of_reach_is_not_sampled_for(plane, images):
    found = smoothing(plane, alpha=0.6, theorem="paper", radius=5.0).certify(images, INDEX)
    assert (found["radius"] == 0).all() and (found["samples"] == BLOCK).all()
    # What h says is known from the samples that chose its class.
    assert found["probabilities"].argmax(1).tolist() == [0, 0, 0, 0, 1]


def test_what_was_decided_is_what_is_reported(plane):
    """Also where the bound, which is known to four digits, is a little worse than the decision."""
    for wanted in np.linspace(0.3, 0.8, 7):
        found = smoothing(plane, radius=wanted, samples=2000).certify(plane.at(torch.full((2,), 3.0)), INDEX[:2])
        assert (found["radius"] >= wanted).all()


def test_stopping_early_fails_no_more_often_than_it_says(plane):
    """At a true radius just below the wanted one, over many images: the chance of a false certificate."""
    images, index = plane.at(torch.full((400,), 0.29)), torch.arange(400)
    found = smoothing(plane, radius=0.3, samples=3000, failure_probability=0.05).certify(images, index)
    assert (found["radius"] >= 0.3).sum() <= 36  # 20 are expected at most; 36 once in three thousand times


# --- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "at least 1 sample"),
        ({"selection": 0}, "at least 1 sample"),
        ({"failure_probability": 0.0}, "failure probability"),
        ({"failure_probability": 1.0}, "failure probability"),
        ({"alpha": 0.4}, "alpha in"),
        ({"bound": "normal"}, "bound among"),
        ({"runner_up": "guess"}, "runner-up among"),
        ({"theorem": "best"}, "theorem among"),
        ({"radius": -1.0}, "wanted radius"),
        ({"radius": 0.0}, "wanted radius"),
        ({"radius": 0.1, "runner_up": "split"}, "stop early"),
    ],
)
def test_bad_settings_are_named(plane, change, message):
    with pytest.raises(ValueError, match=message):
        replace(smoothing(plane), **change)


def test_clopper_pearson_is_refused_for_means(plane):
    with pytest.raises(ValueError, match="votes only"):
        smoothing(plane, hard=False, bound="clopper-pearson")


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_sigma_is_positive(plane, sigma):
    with pytest.raises(ValueError, match="sigma > 0"):
        Sampler(plane, sigma)


@pytest.mark.parametrize("hard", [True, False])
def test_nan_is_no_vote(hard, images):
    with pytest.raises(ValueError, match="NaN"):
        Smoothing(sampler=Sampler(Broken(), SIGMA, hard=hard), samples=10).certify(images, INDEX)


def test_one_class_is_no_choice(images):
    class Alone(nn.Module):
        def forward(self, images):
            return images.new_zeros(len(images), 1)

    with pytest.raises(ValueError, match="two classes"):
        Smoothing(sampler=Sampler(Alone(), SIGMA), samples=10).certify(images, INDEX)
