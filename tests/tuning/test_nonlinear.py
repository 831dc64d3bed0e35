from itertools import pairwise

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.mixing.transforms import nonlinear
from adaptive_smoothing.tuning.nonlinear import ALPHAS, _pushed, _stands, search_nonlinear

THREAT = ads.Linf(2 / 255)
FEW = {"scales": (0.5, 5.0), "powers": (1.0, 3.0), "shifts": (-1.0, 0.0)}


def logits_of(sureness, labels, classes=10):
    """Noise, with the label above it by as much as an image is sure."""
    noise = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(len(labels)))
    return noise.scatter_add(1, labels[:, None], sureness[:, None])


@pytest.fixture
def cached():
    """g is right on nineteen images of twenty, h is sure of most, and less so under attack."""
    labels = torch.arange(400) % 10
    sure = torch.linspace(-1.0, 7.0, 400)[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    g = 10.0 * nn.functional.one_hot((labels + (torch.arange(400) % 20 == 0)) % 10, 10)
    return g, logits_of(sure, labels), labels, logits_of(sure[:300] - 1.5, labels[:300]), labels[:300]


def test_the_share_that_stands_by_hand():
    """Leads of 0.5, 0.25 and -0.2 against (1 - alpha) / alpha."""
    probabilities = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.25, 0.25], [0.4, 0.6, 0.0]]).clamp_min(1e-30)
    shares = [_stands(probabilities.log(), torch.zeros(3, dtype=torch.long), alpha) for alpha in (0.6, 0.7, 0.9)]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3])


def test_the_push_is_against_the_label():
    logits = torch.tensor([[3.0, 1.0, -1.0], [-2.0, 0.0, 2.0]], dtype=torch.float64)  # standard deviation 2
    assert torch.equal(
        _pushed(logits, torch.tensor([0, 1]), 0.25),
        torch.tensor([[2.5, 1.5, -1.0], [-2.0, -0.5, 2.5]], dtype=torch.float64),
    )


def test_alpha_is_the_largest_with_the_wanted_accuracy(cached):
    g, h, labels, _, _ = cached
    certain = nn.functional.one_hot(g.argmax(1), 10).double()
    for setting in search_nonlinear(*cached, clean_accuracy=0.9, **FEW):
        sure = nonlinear(h.double(), setting.scale, setting.power, setting.shift).softmax(1)

        def clean(alpha, sure=sure):
            return ((((1 - alpha) * certain + alpha * sure).argmax(1)) == labels).double().mean().item()

        assert clean(setting.alpha) == setting.clean >= 0.9
        assert all(clean(alpha) < 0.9 for alpha in torch.linspace(setting.alpha + 0.01, ALPHAS[1], 20).tolist()[:-1])


def test_the_best_comes_first_and_of_equals_the_gentlest(cached):
    found = search_nonlinear(*cached, clean_accuracy=0.9, **FEW)
    order = [(-setting.estimated_robust, setting.scale, setting.power) for setting in found]
    assert order == sorted(order) and len(found) > 4
    assert 0 < found[0].estimated_robust < 1


def test_more_accuracy_costs_robustness(cached):
    best = [search_nonlinear(*cached, clean_accuracy=target, **FEW)[0].estimated_robust for target in (0.85, 0.9, 0.94)]
    assert best[0] > best[1] > best[2]


def test_a_push_only_ever_takes(cached):
    estimates = [
        {
            (setting.scale, setting.power, setting.shift): setting.estimated_robust
            for setting in search_nonlinear(*cached, clean_accuracy=0.9, push=push, **FEW)
        }
        for push in (0.0, 0.1, 0.3)
    ]
    for gentle, hard in pairwise(estimates):
        assert all(hard[transform] <= gentle[transform] for transform in gentle)
        assert max(hard.values()) < max(gentle.values())


def test_what_float32_cannot_tell_is_no_robustness(cached):
    """The flat transform orders leads as the other does, all of them below what is left of (1 - alpha) / alpha."""
    kept = search_nonlinear(*cached, clean_accuracy=0.9, scales=(1e-5, 0.5), powers=(3.0,), shifts=(0.0,))
    assert [setting.scale for setting in kept] == [0.5, 1e-5]
    assert kept[0].estimated_robust > 0.3
    assert kept[1].estimated_robust == 0 and kept[1].alpha == ALPHAS[1]


def test_a_tie_with_g_is_no_robustness():
    """So steep that h is certain, and wrong now and then: the wanted accuracy is had at an alpha of 1/2 only."""
    labels = torch.zeros(10, dtype=torch.long)
    g, h = torch.eye(3)[labels] * 9, torch.eye(3)[torch.tensor([1] * 3 + [0] * 7)] * 9
    steep = {"scales": (1000.0,), "powers": (3.0,), "shifts": (0.0,)}
    tied = search_nonlinear(g, h, labels, h, labels, clean_accuracy=1.0, alphas=(0.4, 0.9), **steep)
    assert tied[0].alpha < 0.5
    with pytest.raises(ValueError, match=r"got 1: none .* at an alpha from 0\.55 to 0\.9999, and g alone has 1; ask"):
        search_nonlinear(g, h, labels, h, labels, clean_accuracy=1.0, **steep)
    (had,) = search_nonlinear(g, h, labels, h, labels, clean_accuracy=0.7, **steep)
    assert had.alpha == ALPHAS[1] and had.clean == had.estimated_robust == pytest.approx(0.7)


def test_the_mixture_has_the_accuracy_that_was_promised(linear):
    robust = type(linear)(seed=1).eval()
    pixels = torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = linear(pixels / 255).argmax(1)
    h = robust(pixels / 255)
    for setting in search_nonlinear(linear(pixels / 255), h, labels, h, labels, clean_accuracy=0.8, **FEW):
        assert ads.evaluate(setting.mix(linear, robust), from_tensors(pixels, labels)).clean == setting.clean


def test_errors_name_what_does_not_fit(cached):
    g, h, labels, attacked, attacked_labels = cached
    with pytest.raises(ValueError, match=r"expected labels as finite numbers of shape \[400\], got shape \[300\]"):
        search_nonlinear(g, h, attacked_labels, attacked, attacked_labels, clean_accuracy=0.9)
    with pytest.raises(ValueError, match=r"expected h as finite numbers"):
        search_nonlinear(g, h * torch.nan, labels, attacked, attacked_labels, clean_accuracy=0.9)
    with pytest.raises(ValueError, match=r"expected a clean accuracy in \(0, 1\], such as 0\.9, got 90"):
        search_nonlinear(*cached, clean_accuracy=90)
