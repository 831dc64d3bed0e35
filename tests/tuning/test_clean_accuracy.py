"""The curve of clean accuracy, from intervals that are known."""

import numpy as np
import pytest
import torch

from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, correct_interval


def probabilities(count, classes=5, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)).double().softmax(1)


def test_the_interval_agrees_with_the_mixture_at_every_alpha():
    g, h, labels = probabilities(400), probabilities(400, seed=1), torch.arange(400) % 5
    low, high = correct_interval(g, h, labels)
    for alpha in np.linspace(0, 1, 41):
        correct = ((1 - alpha) * g + alpha * h).argmax(1) == labels
        assert torch.equal(correct, (low < alpha) & (alpha < high))


def test_a_nan_is_correct_at_no_alpha():
    known, nan = probabilities(5), torch.full((5, 5), torch.nan, dtype=torch.double)
    for g, h in ((known, nan), (nan, known), (nan, nan)):
        curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, known.argmax(1))))
        assert not curve.steps()[1].any() and not any(map(curve, np.linspace(0, 1, 11)))


def test_steps_are_exact_and_complete():
    g, h, labels = probabilities(60), probabilities(60, seed=1), torch.arange(60) % 5
    curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, labels)))
    alphas, accuracy = curve.steps()
    assert alphas[0] == 0 and alphas[-1] == 1 and (np.diff(alphas) >= 0).all()
    assert np.allclose([curve(alpha) for alpha in alphas], accuracy)
    dense = np.linspace(0, 1, 5001)
    assert max(map(curve, dense)) <= accuracy.max() + 1e-12


def test_steps_are_those_that_float32_can_resolve():
    """A certain g and a nearly certain h tie close to 1/2, in very narrow intervals."""
    curve = CleanAccuracyCurve(np.full(3, -np.inf), 0.5 + np.array([1e-9, 2e-9, 0.1]))
    assert curve.largest_setting(1.0) == pytest.approx(0.25) and curve.largest_setting(0.6) == pytest.approx(0.25)
    assert curve.largest_setting(0.3) == pytest.approx(0.55)


def test_intervals_of_shifts_may_be_infinite():
    curve = CleanAccuracyCurve(np.array([-np.inf, 3.0, np.inf]), np.array([-2.0, np.inf, -np.inf]), (-10, 10), "shift")
    settings, accuracy = curve.steps()
    assert settings.tolist() == [-10, -6, 0.5, 6.5, 10]
    assert np.allclose(accuracy, np.array([1, 1, 0, 1, 1]) / 3)
    assert curve.largest_setting(0.3) == 10
    with pytest.raises(ValueError, match=r"best on 3 images is 0\.333, at shift -10"):
        curve.largest_setting(0.5)


def test_the_largest_setting_is_the_last_that_reaches_the_target():
    curve = CleanAccuracyCurve(low=np.array([-np.inf, -np.inf, 0.2, 0.6]), high=np.array([np.inf, 0.5, np.inf, np.inf]))
    assert curve(0.1) == 0.5 and curve(0.3) == 0.75 and curve(0.55) == 0.5 and curve(0.9) == 0.75
    assert curve.largest_setting(0.75) == 1.0
    assert curve.largest_setting(0.5) == 1.0
    assert curve.reaches(0.75) and curve.best() == 0.75 and not curve.reaches(0.76)


def test_the_accuracy_that_an_error_offers_can_be_reached():
    curve = CleanAccuracyCurve(np.array([0.5, -np.inf, -np.inf]), np.array([np.inf, 0.4, np.inf]))
    with pytest.raises(ValueError, match=r"on 3 images is 0\.666, at alpha .*; ask for at most that"):
        curve.largest_setting(0.9)
    curve.largest_setting(0.666)


def test_curves_are_stored_with_their_parameter(tmp_path):
    curve = CleanAccuracyCurve(np.array([-np.inf, 1.0]), np.array([2.0, np.inf]), (-3.0, 4.0), "shift")
    curve.save(tmp_path / "curve.npz")
    loaded = CleanAccuracyCurve.load(tmp_path / "curve.npz")
    assert loaded.limits == (-3.0, 4.0) and loaded.parameter == "shift"
    assert np.array_equal(loaded.low, curve.low) and np.array_equal(loaded.high, curve.high)
    assert {"low", "high", "span", "dial"} == set(np.load(tmp_path / "curve.npz").files)  # names in stored files
    np.savez(tmp_path / "early.npz", low=curve.low, high=curve.high)
    early = CleanAccuracyCurve.load(tmp_path / "early.npz")
    assert early.limits == (0.0, 1.0) and early.parameter == "alpha"


def test_a_clean_accuracy_is_met_within_a_twentieth_of_a_point():
    """On 5,000 images, wherever it lies between those of the two classifiers."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (5000,), generator=rng)
    own = 4 * torch.nn.functional.one_hot(labels, 10)
    g, h = ((share * own + 2 * torch.randn(5000, 10, generator=rng)).softmax(1).double() for share in (1.5, 1.0))
    curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, labels)))
    assert curve(0) - curve(1) > 0.1
    for target in np.linspace(curve(1), curve(0), 40):
        assert 0 <= curve(curve.largest_setting(target)) - target < 5e-4
