"""Clean accuracy of mixtures at every alpha or shift: from known intervals, and compared with the mixture itself."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.operating_point import correct_interval
from adaptive_smoothing.tuning.curves import (
    SATURATED,
    CleanAccuracyCurve,
    accuracy_curve,
    at_setting,
    current_setting,
    fixed_alpha_curve,
    shift_curve,
)


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


class Scored(Mixer):
    """A score that is a fixed linear map of both logits, and other logits of h."""

    def forward(self, base_outputs):
        weights = torch.randn(base_outputs.g.shape[1], generator=torch.Generator().manual_seed(5))
        return MixerOutput((base_outputs.h - base_outputs.g) @ weights, 1.5 * base_outputs.h)


def predicted_and_measured(curve, mixed, data, setting):
    """Return the accuracy of the curve and of the mixture at a setting."""
    return curve(at_setting(mixed, setting).alpha_shift.item()), ads.evaluate(at_setting(mixed, setting), data).clean


def test_a_fixed_alpha_has_the_predicted_accuracy(linear, robust, data):
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0, alpha_range=(0.2, 0.7))
    seen: list[int] = []
    curve = accuracy_curve(mixed, data, batch_size=128, progress=seen.append)
    assert seen == [128, 128, 44] and curve.parameter == "alpha" and curve.limits == (0, 1)
    for alpha in (0.0, 0.3, 0.77, 1.0):
        assert curve(alpha) == pytest.approx(ads.evaluate(at_setting(mixed, alpha), data).clean)


def test_the_current_alpha_is_that_inside_of_the_range(linear, robust, data):
    mixed = ads.MixedClassifier(linear, robust, 0.5, alpha_range=(0.2, 1.0))
    assert current_setting(mixed) == pytest.approx(0.6)
    clean = [ads.evaluate(model, data).clean for model in (mixed, mixed.with_alpha_range(0, 1))]
    assert accuracy_curve(mixed, data)(current_setting(mixed)) == pytest.approx(clean[0]) and clean[0] != clean[1]


def test_shifts_of_two_images_by_hand():
    """g is (3/4, 1/4) and h (1/4, 3/4): the first image is correct below alpha = 1/2, the second above it."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.25, 0.75), alpha_scale=2.0)
    curve = shift_curve(mixed, base_outputs, MixerOutput(torch.tensor([1.0, 3.0]), h), torch.tensor([0, 1]))
    assert curve.low[0] == -np.inf and curve.high[0] == pytest.approx(-2.0)
    assert curve.low[1] == pytest.approx(-6.0) and curve.high[1] == np.inf
    assert curve.limits == pytest.approx((-6 - SATURATED, -2 + SATURATED))
    assert curve(-7) == 0.5 and curve(-4) == 1.0 and curve(0) == 0.5
    wider = mixed.with_alpha_range(0.2, 0.8 - 0.2)
    skewed = shift_curve(wider, base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]))
    assert skewed.high[0] == pytest.approx(math.log(3), abs=1e-6)


def test_an_alpha_outside_of_the_range_is_never_reached():
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.6, 0.9))
    curve = shift_curve(mixed, base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]))
    assert set(curve.steps()[1]) == {0.5} and curve.high[0] == curve.low[1] == -np.inf


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("alpha_range", [(0.0, 1.0), (0.3, 0.9)])
def test_a_learned_alpha_has_the_predicted_accuracy(linear, robust, data, scale, alpha_range):
    mixed = ads.MixedClassifier(linear, robust, Scored(), standard_scale=2.0, robust_scale=0.7, alpha_range=alpha_range)
    mixed = mixed.with_sigmoid(scale, 0.3)
    curve = accuracy_curve(mixed, data, batch_size=128)
    settings, accuracy = curve.steps()
    assert accuracy.max() > accuracy.min() + 0.1
    for setting in (settings[0], *np.linspace(-8, 8, 9), settings[-1]):
        assert len(set(predicted_and_measured(curve, mixed, data, float(setting)))) == 1
    target = (accuracy.max() + accuracy[-1]) / 2
    tuned = ads.tune(mixed, data, clean_accuracy=target)
    shift = tuned.alpha_shift.item()
    assert ads.evaluate(tuned, data).clean == curve(shift) >= target
    assert accuracy[settings > shift + 1e-4].max() < target
    assert tuned.alpha is mixed.alpha and tuned.alpha_scale == mixed.alpha_scale
    assert torch.equal(tuned.alpha_range, mixed.alpha_range)


def test_the_limits_of_the_shift_are_those_of_the_range(linear, robust, data):
    mixed = ads.MixedClassifier(linear, robust, Scored(), alpha_range=(0.2, 0.8))
    first, last = accuracy_curve(mixed, data).limits
    images = data.images[:50] / 255
    assert at_setting(mixed, first).mix(images).alpha.max() < 0.2 + 1e-5
    assert at_setting(mixed, last).mix(images).alpha.min() > 0.8 - 1e-5


def test_one_pass_is_enough(linear, robust, data):
    calls = []
    robust.register_forward_hook(lambda *_: calls.append(1))
    ads.tune(ads.MixedClassifier(linear, robust, Scored()), data, clean_accuracy=0.5)
    assert len(calls) == 1


def test_a_real_network_is_tuned_exactly(linear, data):
    """Its features and logits come from one pass."""
    torch.manual_seed(0)
    g, h = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.Flatten(), nn.Linear(32, 4)).eval()
        for _ in range(2)
    )
    mixer = ads.MixingNetwork.between(g, h, standard_taps=("0", "2"), robust_taps=("0", "2"), shape=(3, 8, 8), width=4)
    mixed = ads.MixedClassifier(ads.Hardmax(g), h, mixer, alpha_scale=3.0, alpha_range=(0.4, 1.0))
    curve = accuracy_curve(mixed, data)
    _, accuracy = curve.steps()
    assert len(set(accuracy)) > 3
    tuned = ads.tune(mixed, data, clean_accuracy=accuracy.max())
    assert ads.evaluate(tuned, data).clean == curve(tuned.alpha_shift.item()) == accuracy.max()
    mixer.train()
    with pytest.raises(ValueError, match="expected a model in eval mode"):
        ads.tune(mixed, data, clean_accuracy=0.5)


def test_other_modules_cannot_be_tuned(linear, robust, data):
    class FromImages(nn.Module):
        def forward(self, images):
            return images.mean((1, 2, 3))

    mixed = ads.MixedClassifier(linear, robust, FromImages())
    with pytest.raises(TypeError, match=r"a number or a Mixer .*got the module FromImages, .*with_alpha\(0\.5\)"):
        ads.tune(mixed, data, clean_accuracy=0.5)
    with pytest.raises(TypeError, match="expected a mixture to tune, got LinearClassifier"):
        ads.tune(linear, data, clean_accuracy=0.5)


def test_a_range_without_width_is_a_fixed_alpha(linear, robust, data):
    """The mixer still changes the logits of h."""
    mixed = ads.MixedClassifier(linear, robust, Scored(), alpha_range=(0.7, 0.7))
    assert current_setting(mixed) == pytest.approx(0.7) and accuracy_curve(mixed, data).parameter == "alpha"
    tuned = ads.tune(mixed, data, clean_accuracy=0.5)
    low, high = tuned.alpha_range.tolist()
    assert low == high == current_setting(tuned) and torch.equal(tuned.mix(data.floats()).h, mixed.mix(data.floats()).h)
    assert ads.evaluate(tuned, data).clean == pytest.approx(accuracy_curve(mixed, data)(low), abs=1e-6) and low != 0.7
    base_outputs = mixed.base_outputs(data.floats())
    with pytest.raises(ValueError, match=r"some width, got \(0\.7, 0\.7\), where no shift .*with_alpha_range\(0, 1\)"):
        shift_curve(mixed, base_outputs, mixed.alpha(base_outputs), data.labels)


def test_mixtures_with_transforms_have_the_predicted_accuracy(linear, robust, data):
    """With a transformed h of the mixer, and with a certain g."""
    sharper = ads.Nonlinear(robust, scale=2.0, power=2.0, shift=-0.25)
    for g in (linear, ads.Hardmax(linear)):
        mixed = ads.MixedClassifier(g, sharper, Scored(), alpha_range=(0.4, 0.95))
        curve = accuracy_curve(mixed, data)
        for setting in (-2.0, 0.1, 1.7):
            predicted, measured = predicted_and_measured(curve, mixed, data, setting)
            assert predicted == pytest.approx(measured, abs=1e-6)
        fixed = fixed_alpha_curve(mixed, data)
        at = mixed.with_alpha_range(0.7, 0.7)
        assert fixed(at.alpha_range[0].item()) == pytest.approx(ads.evaluate(at, data).clean, abs=1e-6)
