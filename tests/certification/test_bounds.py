"""Bounds against exact answers, and how often they fail in simulations."""

import numpy as np
import pytest
from scipy.stats import beta, binom

from adaptive_smoothing.certification.bounds import PROBABILITIES, VOTES, Betting, clopper_pearson

# Simulated runs; benchmarks/coverage.py has ten thousand.
RUNS, SAMPLES, CHANCE = 600, 300, 0.05


def counted(errors, values=PROBABILITIES):
    """Return how often each value was observed, rounded up as the sampler does."""
    places = np.searchsorted(values, errors)
    return np.stack([np.bincount(row, minlength=len(values)) for row in places])


def test_clopper_pearson_is_exact():
    counts = np.array([1, 5, 50, 99])
    bound = clopper_pearson(counts, 100, 0.01)
    assert bound == pytest.approx(1 - beta.ppf(0.01, 100 - counts, counts + 1), rel=1e-6)
    assert binom.cdf(counts, 100, bound) == pytest.approx(np.full(4, 0.01), rel=1e-5)
    assert clopper_pearson(np.array([0]), 100, 0.01) == pytest.approx(1 - 0.01**0.01, rel=1e-8)
    assert clopper_pearson(np.array([100]), 100, 0.01) == 1


def test_a_bet_refutes_its_bound_and_not_a_mean_just_below_it():
    errors = np.random.default_rng(2).beta(0.5, 4.0, size=(30, 2000))
    counts, bet, goal = counted(errors), Betting(), -np.log(0.01)
    bound = bet.upper(counts, 0.01, PROBABILITIES)
    assert (bet.log_capital(counts, bound, PROBABILITIES) >= goal).all()
    assert (bet.log_capital(counts, bound / 1.003, PROBABILITIES) < goal).all()
    one_by_one = [bet.upper(row[None], 0.01, PROBABILITIES)[0] for row in counts]
    assert bound.tolist() == one_by_one


def simulated(kind, rng):
    """Return errors with a known mean: votes, or probabilities of an unconfident, a confident and an undecided base."""
    if kind == "votes":
        return (rng.random((RUNS, SAMPLES)) < 0.02).astype(float), 0.02
    one, other = {"unconfident": (2.0, 6.0), "confident": (0.05, 5.0), "undecided": (0.1, 0.3)}[kind]
    return rng.beta(one, other, size=(RUNS, SAMPLES)), one / (one + other)


@pytest.mark.parametrize("kind", ["votes", "unconfident", "confident", "undecided"])
def test_bounds_fail_as_rarely_as_they_promise(kind):
    errors, mean = simulated(kind, np.random.default_rng(1))
    values = VOTES if kind == "votes" else PROBABILITIES
    found = {"betting": Betting().upper(counted(errors, values), CHANCE, values)}
    if kind == "votes":
        found["clopper-pearson"] = clopper_pearson(errors.sum(1), SAMPLES, CHANCE)
    # Exceeded once in a million times by a bound that fails exactly as often as it may.
    allowed = binom.ppf(1 - 1e-6, RUNS, CHANCE)
    for name, bound in found.items():
        assert (bound < mean).sum() <= allowed, name
    assert ((errors.mean(1) < mean).sum() > allowed) and (found["betting"] < 3 * mean + 0.05).all()
    if kind == "votes":
        assert (found["clopper-pearson"] < mean).sum() > 0.2 * CHANCE * RUNS  # nor is it far too wide


def test_clopper_pearson_fails_on_means_of_probabilities():
    """Rare errors of 1/2: rounding their sum to a count underestimates it, so means need another bound."""
    rng = np.random.default_rng(2)
    errors = 0.5 * (rng.random((RUNS, SAMPLES)) < 0.02)
    naive = clopper_pearson(np.floor(errors.sum(1)), SAMPLES, CHANCE)
    sound = Betting().upper(counted(errors), CHANCE, PROBABILITIES)
    assert (naive < 0.01).sum() > (sound < 0.01).sum()


def test_the_capital_rarely_reaches_its_goal_however_often_one_checks():
    rng = np.random.default_rng(3)
    errors = (rng.random((RUNS, SAMPLES)) < 0.1).astype(float)
    total = np.cumsum(errors, 1)
    reached = np.zeros(RUNS, dtype=bool)
    for n in range(1, SAMPLES + 1):
        counts = np.stack([n - total[:, n - 1], total[:, n - 1]], 1)
        reached |= Betting().log_capital(counts, 0.1, VOTES) >= -np.log(CHANCE)
    assert 0 < reached.sum() <= binom.ppf(1 - 1e-6, RUNS, CHANCE)


def test_bets_on_a_larger_mean_mirror_bets_on_a_smaller_one():
    counts = np.array([[30, 70]])
    above = Betting().log_capital_above(counts, 0.3, VOTES)
    assert above == pytest.approx(Betting().log_capital(counts[:, ::-1], 0.7, VOTES))
    assert above > 0 > Betting().log_capital(counts, 0.3, VOTES)


@pytest.mark.parametrize("chance", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_failure_probability_is_between_zero_and_one(chance):
    with pytest.raises(ValueError, match="failure probability"):
        clopper_pearson(np.array([1]), 10, chance)
    with pytest.raises(ValueError, match="failure probability"):
        Betting().upper(np.array([[1, 1]]), chance, VOTES)


def test_a_bound_needs_samples():
    with pytest.raises(ValueError, match="at least 1 sample"):
        clopper_pearson(np.array([0]), 0, 0.1)


# --- the bounds that benchmarks/coverage.py compares with ---------------------------------------------


@pytest.fixture(scope="module")
def coverage(load_benchmark):
    return load_benchmark("coverage")


def test_chernoff_refutes_a_mean_that_makes_the_average_too_unlikely(coverage):
    for mean in (0.001, 0.05, 0.5, 0.97):
        bound = coverage.chernoff(mean, 1000, 0.01)
        divergence = mean * np.log(mean / bound) + (1 - mean) * np.log((1 - mean) / (1 - bound))
        assert np.exp(-1000 * divergence) == pytest.approx(0.01, rel=1e-4)
    assert coverage.chernoff(0.0, 1000, 0.01) == pytest.approx(1 - 0.01**0.001, rel=1e-6)
    assert coverage.chernoff(1.0, 1000, 0.01) == 1


def test_betting_is_tighter_than_bernstein_and_bernstein_than_chernoff(coverage):
    errors = np.random.default_rng(0).beta(0.2, 3.8, size=(20, 10_000))
    mean, variance = errors.mean(1), errors.var(1, ddof=1)
    betting = Betting().upper(counted(errors), 0.001, PROBABILITIES)
    bernstein = coverage.empirical_bernstein(mean, variance, 10_000, 0.001)
    assert (mean < betting).all() and (betting < bernstein).all() and (betting - mean).mean() < 0.005
    assert (bernstein < coverage.chernoff(mean, 10_000, 0.001)).all()
    assert coverage.empirical_bernstein(0.05, 0.01, 10_000, 0.001) - 0.05 == pytest.approx(0.0056, abs=3e-4)


def test_simulated_errors_have_the_mean_that_bounds_are_compared_with(coverage):
    for number, kind in enumerate(coverage.KINDS):
        errors, mean = coverage.errors(kind, 50, 2000, np.random.default_rng(number))
        assert errors.mean() == pytest.approx(mean, abs=5 * errors.std() / np.sqrt(errors.size))
        bounds = coverage.uppers(kind, errors, 0.001)
        assert all((bound > errors.mean(1)).all() for bound in bounds.values())
