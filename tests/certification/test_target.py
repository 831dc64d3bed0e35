"""Which models can be certified, and with which alpha."""

import numpy as np
import pytest
import torch
from half_spaces import AlwaysOne
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.certification.target import NotCertifiableError
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.mixing.network import MixingNetwork


class Learned(nn.Module):
    def forward(self, images):
        return images.mean((1, 2, 3))


class Replacing(Mixer):
    def forward(self, base_outputs):
        return MixerOutput(base_outputs.h[:, 0], 2 * base_outputs.h)


class Subclass(MixingNetwork):
    """A subclass of the paper's network, which may do anything."""

    def __init__(self):
        nn.Module.__init__(self)
        self.standard_taps = self.robust_taps = ()


class OutOfRange(nn.Module):
    def forward(self, images):
        return 1.5 + 0 * images.mean((1, 2, 3))


def test_a_mixture_with_nan_is_refused(plane, data):
    mixed = ads.MixedClassifier(AlwaysOne(), plane, alpha=OutOfRange(), alpha_range=(0.8, 1.0))
    with pytest.raises(ValueError, match="NaN"):
        ads.certify(mixed, data)


@pytest.mark.parametrize("alpha", [Learned(), nn.Parameter(torch.tensor(0.8))], ids=["no width", "parameter"])
def test_a_constant_alpha_in_another_form_certifies_as_the_number(plane, data, alpha):
    span = (0.8, 0.8) if isinstance(alpha, nn.Module) else (0.0, 1.0)
    found = ads.certify(ads.MixedClassifier(AlwaysOne(), plane, alpha=alpha, alpha_range=span), data)
    plain = ads.certify(ads.MixedClassifier(AlwaysOne(), plane, alpha=0.8), data)
    assert np.allclose(found.rows["radius"], plain.rows["radius"])
    assert np.array_equal(found.rows["prediction"], plain.rows["prediction"])


def test_a_learned_alpha_certifies_with_the_lower_end_of_its_range(plane, data):
    mixed = ads.MixedClassifier(AlwaysOne(), plane, alpha=Learned(), alpha_range=(0.8, 1.0))
    fixed = ads.MixedClassifier(AlwaysOne(), plane, alpha=0.8)
    learned, number = ads.certify(mixed, data), ads.certify(fixed, data)
    assert np.allclose(learned.rows["radius"], number.rows["radius"])
    assert learned.settings["alpha"] == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Learned()), "learned alpha"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=0.45), "below 1/2"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=torch.full((9,), 0.8)), "one per image"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Replacing(), alpha_range=(0.8, 1)), "replace the logits of h"),
        (lambda g, h: ads.GradientMixedClassifier(g, h, gamma=4.0, on="logits"), "logits are not bounded"),
        (lambda g, h: ads.MixedClassifier(g, ads.Hardmax(h), alpha=0.9), "not in the Lipschitz constant"),
        (lambda g, h: ads.MixedClassifier(g, ads.SmoothedClassifier(h, 0.5), alpha=0.9, robust_scale=2.0), "times 2"),
        (lambda g, h: g, "as h"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Subclass(), alpha_range=(0.8, 1)), "replace the logits of h"),
    ],
)
def test_a_model_without_a_theorem_is_refused_with_the_reason(plane, data, change, reason):
    with pytest.raises(NotCertifiableError, match=reason):
        ads.certify(change(AlwaysOne(), plane), data)
