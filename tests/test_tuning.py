import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.tuning import CleanAccuracy, clean_accuracy, right_interval


def probabilities(count, classes=5, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)).double().softmax(1)


def test_interval_agrees_with_the_mixture_at_every_alpha():
    g, h, labels = probabilities(400), probabilities(400, seed=1), torch.arange(400) % 5
    low, high = right_interval(g, h, labels)
    for alpha in np.linspace(0, 1, 41):
        right = ((1 - alpha) * g + alpha * h).argmax(1) == labels
        assert torch.equal(right, (low < alpha) & (alpha < high))


def test_steps_are_exact_and_complete():
    g, h, labels = probabilities(60), probabilities(60, seed=1), torch.arange(60) % 5
    curve = CleanAccuracy(*(end.numpy() for end in right_interval(g, h, labels)))
    alphas, accuracy = curve.steps()
    assert alphas[0] == 0 and alphas[-1] == 1 and (np.diff(alphas) >= 0).all()
    assert np.allclose([curve(alpha) for alpha in alphas], accuracy)
    dense = np.linspace(0, 1, 5001)
    assert max(map(curve, dense)) <= accuracy.max() + 1e-12


def test_largest_alpha_is_the_last_that_reaches_the_target():
    curve = CleanAccuracy(low=np.array([-np.inf, -np.inf, 0.2, 0.6]), high=np.array([np.inf, 0.5, np.inf, np.inf]))
    assert curve(0.1) == 0.5 and curve(0.3) == 0.75 and curve(0.55) == 0.5 and curve(0.9) == 0.75
    assert curve.largest_alpha(0.75) == 1.0
    assert curve.largest_alpha(0.5) == 1.0


def test_what_is_offered_can_be_had():
    curve = CleanAccuracy(np.array([0.5, -np.inf, -np.inf]), np.array([np.inf, 0.4, np.inf]))
    with pytest.raises(ValueError, match=r"on 3 images is 0\.666, at alpha .*; ask for at most that"):
        curve.largest_alpha(0.9)
    curve.largest_alpha(0.666)


def test_tune_wants_images_with_labels(linear):
    with pytest.raises(TypeError, match=r"expected ImageData, got tuple: .*ads.from_tensors"):
        ads.tune(ads.MixedClassifier(linear, linear, 0.5), (torch.rand(2, 3, 8, 8), [0, 1]), clean_accuracy=0.8)


def test_tune_reaches_the_wanted_accuracy(linear):
    robust = type(linear)(seed=1).eval()
    pixels = torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, linear(pixels / 255).argmax(1))
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0)
    tuned = ads.tune(mixed, data, clean_accuracy=0.8)
    alpha = tuned.alpha.item()
    assert 0 < alpha < 1 and ads.evaluate(tuned, data).clean >= 0.8
    assert ads.evaluate(mixed.with_alpha(min(1, alpha + 0.01)), data).clean < 0.82
    assert tuned.standard is linear
    curve = clean_accuracy(linear, robust, data, standard_scale=2.0)
    for at in (0.0, 0.3, 0.77, 1.0):
        assert curve(at) == pytest.approx(ads.evaluate(mixed.with_alpha(at), data).clean)
