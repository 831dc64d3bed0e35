"""Transforms of logits: `Hardmax` and the nonlinear transform of MixedNUTS, compared with known answers."""

import copy

import pytest
import torch
from smooth_networks import CLASSES, images, network
from torch import nn

from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, nonlinear
from adaptive_smoothing.models.contract import check_eval

G = network(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hardmax_is_one_hot_to_the_last_bit(dtype):
    hard = Hardmax(copy.deepcopy(G).to(dtype))(images().to(dtype))
    predicted = G(images()).argmax(1)
    assert hard.isfinite().all()
    assert torch.equal(hard.softmax(1), nn.functional.one_hot(predicted, CLASSES).to(dtype))


def test_hardmax_breaks_ties_as_argmax_and_passes_nan_on():
    logits = torch.tensor([[1.0, 2.0, 2.0], [float("nan"), 0.0, 0.0]])
    hard = Hardmax(G).transform(logits)
    assert hard[0].argmax() == logits[0].argmax() and hard[0].count_nonzero() == 1
    assert hard[1].isnan().all()


def test_a_soft_hardmax_is_refused():
    with pytest.raises(ValueError, match="softmax is not one-hot"):
        Hardmax(G, scale=10.0)


def test_hardmax_has_a_gradient_of_zero():
    batch = images().requires_grad_()
    gradient = torch.autograd.grad(Hardmax(G)(batch).logsumexp(1).sum(), batch)[0]
    assert torch.equal(gradient, torch.zeros_like(batch))


def test_hardmax_keeps_its_model_in_eval_mode():
    check_eval(Hardmax(network(0)).train())


def test_nonlinear_against_a_known_answer():
    """Mean 0, standard deviation 1, so that LN changes nothing; GELU(1) = 0.8413."""
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    found = nonlinear(logits, scale=5.0, power=4.0, shift=0.0)
    torch.testing.assert_close(found, torch.tensor([[5 * 0.8413447**4, 0.0, -5 * 0.1586553**4]]), atol=1e-5, rtol=1e-4)


def test_nonlinear_does_not_depend_on_the_scale_of_h():
    logits = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    one, other = (nonlinear(factor * logits + 7, 5.0, 4.0, 0.3) for factor in (1, 20))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_nonlinear_keeps_the_prediction_and_widens_large_margins():
    logits = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    found = nonlinear(logits, 5.0, 3.0, 0.0)
    assert torch.equal(found.argmax(1), logits.argmax(1))
    before, after = (values.topk(2).values.diff(dim=1).neg().squeeze(1) for values in (logits, found))
    assert (after[before > 1].min() > after[before < 0.05].max()).all()


@pytest.mark.parametrize(
    "wrong", [{"scale": 0}, {"scale": float("inf")}, {"power": float("nan")}, {"shift": -float("inf")}]
)
def test_options_of_nonlinear_that_are_not_positive_or_not_finite_are_refused(wrong):
    with pytest.raises(ValueError, match="expected a positive scale, a positive power and a shift, all finite, got"):
        Nonlinear(G, **{"scale": 5.0, "power": 4.0, "shift": 0.0, **wrong})


@pytest.mark.parametrize("top", [-1, 0, 1, 2.5, float("inf")])
def test_nonlinear_needs_the_standard_deviation_of_two_logits_or_more(top):
    with pytest.raises(ValueError, match="expected top as a whole number above 1, got"):
        Nonlinear(G, scale=5.0, power=4.0, shift=0.0, top=top)
    assert Nonlinear(G, scale=5.0, power=4.0, shift=0.0, top=2)(images()).isfinite().all()


def test_nonlinear_has_finite_gradients_everywhere():
    logits = torch.tensor([[0.0] * 10, [1e4] + [0.0] * 9, [1.0, 1.0] + [0.0] * 8]).requires_grad_()
    for power in (0.5, 1.0, 6.0):
        (gradient,) = torch.autograd.grad(nonlinear(logits, 5.0, power, -0.5)[:, 0].sum(), logits)
        assert gradient.isfinite().all()
