"""The search of MixedNUTS, on logits and on linear classifiers."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.mixing.transforms import nonlinear
from adaptive_smoothing.tuning.nonlinear import ALPHAS, _robust_share, _worse_logits, fit_nonlinear, search_nonlinear

THREAT = ads.Linf(2 / 255)
FEW = {"scales": (0.5, 5.0), "powers": (1.0, 3.0), "shifts": (-1.0, 0.0)}


def logits_of(confidence, labels, classes=10):
    """Return noise plus the confidence of each image at its label."""
    noise = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(len(labels)))
    return noise.scatter_add(1, labels[:, None], confidence[:, None])


@pytest.fixture
def cached():
    """g is correct on nineteen images of twenty. h is confident of most, and less so under attack."""
    labels = torch.arange(400) % 10
    confidence = torch.linspace(-1.0, 7.0, 400)[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    g = 10.0 * nn.functional.one_hot((labels + (torch.arange(400) % 20 == 0)) % 10, 10)
    return g, logits_of(confidence, labels), labels, logits_of(confidence[:300] - 1.5, labels[:300]), labels[:300]


def test_the_robust_share_by_hand():
    """Leads of 0.5, 0.25 and -0.2 against (1 - alpha) / alpha."""
    probabilities = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.25, 0.25], [0.4, 0.6, 0.0]]).clamp_min(1e-30)
    shares = [_robust_share(probabilities.log(), torch.zeros(3, dtype=torch.long), alpha) for alpha in (0.6, 0.7, 0.9)]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3])


def test_worse_logits_by_hand():
    logits = torch.tensor([[3.0, 1.0, -1.0], [-2.0, 0.0, 2.0]], dtype=torch.float64)  # standard deviation 2
    assert torch.equal(
        _worse_logits(logits, torch.tensor([0, 1]), 0.25),
        torch.tensor([[2.5, 1.5, -1.0], [-2.0, -0.5, 2.5]], dtype=torch.float64),
    )


def test_alpha_is_the_largest_with_the_wanted_accuracy(cached):
    g, h, labels, _, _ = cached
    certain = nn.functional.one_hot(g.argmax(1), 10).double()
    for setting in search_nonlinear(*cached, clean_accuracy=0.9, **FEW):
        transformed = nonlinear(h.double(), setting.scale, setting.power, setting.shift).softmax(1)

        def clean(alpha, h=transformed):
            return ((((1 - alpha) * certain + alpha * h).argmax(1)) == labels).double().mean().item()

        assert clean(setting.alpha) == setting.clean >= 0.9
        assert all(clean(alpha) < 0.9 for alpha in torch.linspace(setting.alpha + 0.01, ALPHAS[1], 20).tolist()[:-1])


def test_settings_are_sorted_by_estimate_then_scale_and_power(cached):
    found = search_nonlinear(*cached, clean_accuracy=0.9, **FEW)
    order = [(-setting.estimated_robust, setting.scale, setting.power) for setting in found]
    assert order == sorted(order) and len(found) > 4
    assert 0 < found[0].estimated_robust < 1


def test_more_accuracy_costs_robustness(cached):
    best = [search_nonlinear(*cached, clean_accuracy=target, **FEW)[0].estimated_robust for target in (0.85, 0.9, 0.94)]
    assert best[0] > best[1] > best[2]


def test_a_push_lowers_the_estimates(cached):
    estimates = [
        {
            (setting.scale, setting.power, setting.shift): setting.estimated_robust
            for setting in search_nonlinear(*cached, clean_accuracy=0.9, push=push, **FEW)
        }
        for push in (0.0, 0.1, 0.3)
    ]
    for less, more in pairwise(estimates):
        assert all(more[transform] <= less[transform] for transform in less)
        assert max(more.values()) < max(less.values())


def test_leads_below_the_precision_of_float32_are_not_robust(cached):
    """The flat transform has the same order of leads, but all of them are below (1 - alpha) / alpha."""
    kept = search_nonlinear(*cached, clean_accuracy=0.9, scales=(1e-5, 0.5), powers=(3.0,), shifts=(0.0,))
    assert [setting.scale for setting in kept] == [0.5, 1e-5]
    assert kept[0].estimated_robust > 0.3
    assert kept[1].estimated_robust == 0 and kept[1].alpha == ALPHAS[1]


def test_a_tie_with_g_is_not_robust():
    """A steep transform makes h certain: the clean accuracy of g is reached up to alpha = 1/2 only."""
    labels = torch.zeros(10, dtype=torch.long)
    g, h = torch.eye(3)[labels] * 9, torch.eye(3)[torch.tensor([1] * 3 + [0] * 7)] * 9
    steep = {"scales": (1000.0,), "powers": (3.0,), "shifts": (0.0,)}
    tied = search_nonlinear(g, h, labels, h, labels, clean_accuracy=1.0, alphas=(0.4, 0.9), **steep)
    assert tied[0].alpha < 0.5
    with pytest.raises(ValueError, match=r"got 1: none .* at an alpha from 0\.55 to 0\.9999, and g alone has 1; ask"):
        search_nonlinear(g, h, labels, h, labels, clean_accuracy=1.0, **steep)
    (found,) = search_nonlinear(g, h, labels, h, labels, clean_accuracy=0.7, **steep)
    assert found.alpha == ALPHAS[1] and found.clean == found.estimated_robust == pytest.approx(0.7)


def test_the_mixture_has_the_accuracy_of_its_setting(linear, robust, pixels):
    labels = linear(pixels / 255).argmax(1)
    h = robust(pixels / 255)
    for setting in search_nonlinear(linear(pixels / 255), h, labels, h, labels, clean_accuracy=0.8, **FEW):
        assert ads.evaluate(setting.mix(linear, robust), from_tensors(pixels, labels)).clean == setting.clean


def test_the_most_robust_of_the_best_settings_is_returned(linear, robust, labelled_by_g, monkeypatch):
    """Attacks on mixtures are replaced by a preference for the second setting that is tried."""
    tried, lines = [], []

    def attacked(data, threat):
        assert len(data) == 20 and threat == THREAT
        return lambda mixed: tried.append(mixed) or float(len(tried) == 2)

    monkeypatch.setattr("adaptive_smoothing.tuning.nonlinear.robust_accuracy_under", attacked)
    options = {"clean_accuracy": 0.9, "attacked": 20, "tried": 3, "log": lines.append}
    mixed = fit_nonlinear(linear, robust, labelled_by_g, THREAT, **options)
    assert mixed is tried[1] and len(tried) == 3 and len(lines) == 4
    assert len({(model.robust.power, model.robust.shift) for model in tried}) == 3
    setting = mixed.card["transform"]
    assert setting["alpha"] == pytest.approx(mixed.alpha.item())
    assert {name: setting[name] for name in ("scale", "power", "shift")} | {"top": 250} == mixed.robust.options
    assert setting["clean"] == ads.evaluate(mixed, labelled_by_g).clean >= 0.9


def test_errors_name_the_argument(cached):
    g, h, labels, attacked, attacked_labels = cached
    with pytest.raises(ValueError, match=r"expected labels as finite numbers of shape \[400\], got shape \[300\]"):
        search_nonlinear(g, h, attacked_labels, attacked, attacked_labels, clean_accuracy=0.9)
    with pytest.raises(ValueError, match=r"expected h as finite numbers"):
        search_nonlinear(g, h * torch.nan, labels, attacked, attacked_labels, clean_accuracy=0.9)
    with pytest.raises(ValueError, match=r"expected a clean accuracy in \(0, 1\], such as 0\.9, got 90"):
        search_nonlinear(*cached, clean_accuracy=90)
