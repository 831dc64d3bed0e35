"""Clean accuracy of mixtures at every alpha or shift: by hand, and compared with the mixture itself."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.tuning.curves import (
    SATURATED,
    accuracy_curve,
    at_setting,
    current_setting,
    fixed_alpha_curve,
    shift_curve,
)


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


def test_shifts_of_two_images_by_hand():
    """g is (3/4, 1/4) and h (1/4, 3/4): the first image is correct below alpha = 1/2, the second above it."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.25, 0.75), alpha_scale=2.0)
    curve = shift_curve(base_outputs, MixerOutput(torch.tensor([1.0, 3.0]), h), torch.tensor([0, 1]), mixed)
    assert curve.low[0] == -np.inf and curve.high[0] == pytest.approx(-2.0)
    assert curve.low[1] == pytest.approx(-6.0) and curve.high[1] == np.inf
    assert curve.limits == pytest.approx((-6 - SATURATED, -2 + SATURATED))
    assert curve(-7) == 0.5 and curve(-4) == 1.0 and curve(0) == 0.5
    wider = mixed.with_alpha_range(0.2, 0.8 - 0.2)
    skewed = shift_curve(base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]), wider)
    assert skewed.high[0] == pytest.approx(math.log(3), abs=1e-6)


def test_an_alpha_outside_of_the_range_is_never_reached():
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.6, 0.9))
    curve = shift_curve(base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]), mixed)
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
        shift_curve(base_outputs, mixed.alpha(base_outputs), data.labels, mixed)


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
