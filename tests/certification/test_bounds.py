"""Bounds against exact answers, and how often they fail."""

import numpy as np
import pytest
from scipy.stats import beta, binom

from adaptive_smoothing.certification.bounds import (
    PROBABILITIES,
    VOTES,
    Betting,
    chernoff,
    clopper_pearson,
    empirical_bernstein,
)

# Ten thousand runs are in docs/results.md.
RUNS, SAMPLES, CHANCE = 600, 300, 0.05


def counted(doubts, values=PROBABILITIES):
    """Rounded up to the values, as the sampler does."""
    places = np.searchsorted(values, doubts)
    return np.stack([np.bincount(row, minlength=len(values)) for row in places])


def test_clopper_pearson_is_exact():
    counts = np.array([1, 5, 50, 99])
    bound = clopper_pearson(counts, 100, 0.01)
    assert bound == pytest.approx(1 - beta.ppf(0.01, 100 - counts, counts + 1), rel=1e-6)
    assert binom.cdf(counts, 100, bound) == pytest.approx(np.full(4, 0.01), rel=1e-5)
    assert clopper_pearson(np.array([0]), 100, 0.01) == pytest.approx(1 - 0.01**0.01, rel=1e-8)
    assert clopper_pearson(np.array([100]), 100, 0.01) == 1


def test_wider_bounds_are_wider():
    mean, variance, n = 0.05, 0.01, 10_000
    assert empirical_bernstein(mean, variance, n, 0.001) - mean == pytest.approx(0.0056, abs=3e-4)
    assert chernoff(mean, n, 0.001) - mean == pytest.approx(0.0085, abs=1e-4)


def test_chernoff_refutes_what_would_make_the_average_too_unlikely():
    for mean in (0.001, 0.05, 0.5, 0.97):
        bound = chernoff(mean, 1000, 0.01)
        divergence = mean * np.log(mean / bound) + (1 - mean) * np.log((1 - mean) / (1 - bound))
        assert np.exp(-1000 * divergence) == pytest.approx(0.01, rel=1e-4)
        hoeffding = mean + np.sqrt(-np.log(0.01) / 2000)
        assert mean < bound < hoeffding + 1e-9
    assert chernoff(0.0, 1000, 0.01) == pytest.approx(1 - 0.01**0.001, rel=1e-6)
    assert chernoff(1.0, 1000, 0.01) == 1


def test_betting_is_tighter_than_bernstein_on_means():
    rng = np.random.default_rng(0)
    doubts = rng.beta(0.2, 3.8, size=(20, 10_000))
    bet = Betting().upper(counted(doubts), 0.001, PROBABILITIES) - doubts.mean(1)
    bernstein = empirical_bernstein(doubts.mean(1), doubts.var(1, ddof=1), 10_000, 0.001) - doubts.mean(1)
    assert (bet < bernstein).all() and bet.mean() < 0.005


def test_a_bet_refutes_its_bound_and_not_a_mean_just_below_it():
    doubts = np.random.default_rng(2).beta(0.5, 4.0, size=(30, 2000))
    counts, bet, enough = counted(doubts), Betting(), -np.log(0.01)
    bound = bet.upper(counts, 0.01, PROBABILITIES)
    assert (bet.log_capital(counts, bound, PROBABILITIES) >= enough).all()
    assert (bet.log_capital(counts, bound / 1.003, PROBABILITIES) < enough).all()
    one_by_one = [bet.upper(row[None], 0.01, PROBABILITIES)[0] for row in counts]
    assert bound.tolist() == one_by_one


def simulated(kind, rng):
    """Runs of doubts with a known mean: votes, or the probabilities of an unsure, a sure and an undecided base."""
    if kind == "votes":
        return (rng.random((RUNS, SAMPLES)) < 0.02).astype(float), 0.02
    one, other = {"unsure": (2.0, 6.0), "sure": (0.05, 5.0), "undecided": (0.1, 0.3)}[kind]
    return rng.beta(one, other, size=(RUNS, SAMPLES)), one / (one + other)


@pytest.mark.parametrize("kind", ["votes", "unsure", "sure", "undecided"])
def test_bounds_hold_as_often_as_they_say(kind):
    doubts, mean = simulated(kind, np.random.default_rng(1))
    values = VOTES if kind == "votes" else PROBABILITIES
    counts = counted(doubts, values)
    found = {
        "betting": Betting().upper(counts, CHANCE, values),
        "bernstein": empirical_bernstein(doubts.mean(1), doubts.var(1, ddof=1), SAMPLES, CHANCE),
        "chernoff": chernoff(doubts.mean(1), SAMPLES, CHANCE),
    }
    if kind == "votes":
        found["clopper-pearson"] = clopper_pearson(doubts.sum(1), SAMPLES, CHANCE)
    # Fails once in a million runs if the bound fails just as often as it may.
    allowed = binom.ppf(1 - 1e-6, RUNS, CHANCE)
    for name, bound in found.items():
        assert (bound < mean).sum() <= allowed, name
    if kind == "votes":
        assert (found["clopper-pearson"] < mean).sum() > 0.2 * CHANCE * RUNS  # it is not far too wide either


def test_clopper_pearson_on_means_of_probabilities_is_refused_elsewhere_because_it_fails():
    """Rare doubts of 1/2: rounding them to counts undercounts, which is why means have bounds of their own."""
    rng = np.random.default_rng(2)
    doubts = 0.5 * (rng.random((RUNS, SAMPLES)) < 0.02)
    naive = clopper_pearson(np.floor(doubts.sum(1)), SAMPLES, CHANCE)
    sound = Betting().upper(counted(doubts), CHANCE, PROBABILITIES)
    assert (naive < 0.01).sum() > (sound < 0.01).sum()


def test_the_capital_seldom_reaches_its_goal_however_often_one_looks():
    rng = np.random.default_rng(3)
    doubts = (rng.random((RUNS, SAMPLES)) < 0.1).astype(float)
    seen = np.cumsum(doubts, 1)
    reached = np.zeros(RUNS, dtype=bool)
    for n in range(1, SAMPLES + 1):
        counts = np.stack([n - seen[:, n - 1], seen[:, n - 1]], 1)
        reached |= Betting().log_capital(counts, 0.1, VOTES) >= -np.log(CHANCE)
    assert 0 < reached.sum() <= binom.ppf(1 - 1e-6, RUNS, CHANCE)


def test_giving_up_is_the_mirror_of_being_certain():
    counts = np.array([[30, 70]])
    above = Betting().log_capital_above(counts, 0.3, VOTES)
    assert above == pytest.approx(Betting().log_capital(counts[:, ::-1], 0.7, VOTES))
    assert above > 0 > Betting().log_capital(counts, 0.3, VOTES)


@pytest.mark.parametrize("chance", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_failure_probability_is_inside_zero_and_one(chance):
    with pytest.raises(ValueError, match="failure probability"):
        clopper_pearson(np.array([1]), 10, chance)
    with pytest.raises(ValueError, match="failure probability"):
        Betting().upper(np.array([[1, 1]]), chance, VOTES)


def test_no_samples_are_no_bound():
    with pytest.raises(ValueError, match="at least 1 sample"):
        chernoff(np.array([0.5]), 0, 0.1)
    assert empirical_bernstein(np.array([0.5]), np.array([0.0]), 1, 0.1) == 1
