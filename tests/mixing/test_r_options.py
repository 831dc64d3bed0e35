"""R_i(x) compared with gradients of one image and one class at a time."""

import pytest
import torch
from smooth_networks import CLASSES, images, network
from torch import Tensor, nn

from adaptive_smoothing.mixing.gradient_mixture import (
    R_OPTIONS,
    class_gradient_norms,
    gradient_ratio,
    predicted_gradient,
)
from adaptive_smoothing.threat import L2, Linf, Threat


def slow_norms(model: nn.Module, batch: Tensor, norm: type[Threat]) -> Tensor:
    """By a loop over images and classes."""
    rows = torch.zeros(len(batch), CLASSES, dtype=batch.dtype)
    for n, image in enumerate(batch):
        for i in range(CLASSES):
            leaf = image[None].clone().requires_grad_()
            gradient = torch.autograd.grad(model(leaf)[0, i], leaf)[0]
            rows[n, i] = gradient.abs().sum() if norm is Linf else gradient.square().sum().sqrt()
    return rows


@pytest.mark.parametrize("norm", [Linf, L2])
@pytest.mark.parametrize("classes_at_once", [1, 2, 16])
def test_class_gradient_norms(norm, classes_at_once):
    model = network(0)
    norms = class_gradient_norms(model, images(), norm, classes_at_once)
    torch.testing.assert_close(norms, slow_norms(model, images(), norm))


@pytest.mark.parametrize("norm", [Linf, L2])
def test_the_four_options(norm):
    g, h, batch = network(0), network(1), images()
    of_g, of_h = slow_norms(g, batch, norm), slow_norms(h, batch, norm)
    expected = {
        "one": torch.ones(3, 1, dtype=torch.float64),
        "standard_gradient": of_g,
        "predicted_gradient": of_g.gather(1, g(batch).argmax(1, keepdim=True)),
        "gradient_ratio": of_g / of_h,
    }
    assert set(R_OPTIONS) == set(expected)
    for name, option in R_OPTIONS.items():
        torch.testing.assert_close(option(g, h, batch, norm), expected[name])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_changes_nothing(mode):
    expected = gradient_ratio(network(0), network(1), images(), Linf)
    with mode():
        assert torch.equal(gradient_ratio(network(0), network(1), images(), Linf), expected)


@pytest.mark.parametrize("name", ["standard_gradient", "predicted_gradient", "gradient_ratio"])
def test_gradients_include_that_of_r(name):
    """Double backward against finite differences."""
    batch = images(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: R_OPTIONS[name](network(0), network(1), x, L2), (batch,))


class Flat(nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        return batch.flatten(1)[:, :CLASSES] * 0


@pytest.mark.parametrize("norm", [Linf, L2])
def test_a_flat_classifier_leaves_the_ratio_finite(norm):
    g, flat = network(0), Flat()
    batch = images().float().requires_grad_()
    steep = gradient_ratio(g.float(), flat, batch, norm)
    assert steep.isfinite().all() and (steep > 1e6).all()
    assert torch.autograd.grad((steep / (1 + steep)).sum(), batch)[0].isfinite().all()
    assert torch.equal(gradient_ratio(flat, flat, batch, norm), torch.ones(3, CLASSES))


def test_compiles():
    g, h, batch = network(0), network(1), images()
    for option in (predicted_gradient, gradient_ratio):
        compiled = torch.compile(lambda x, option=option: option(g, h, x, Linf), backend="aot_eager")
        torch.testing.assert_close(compiled(batch), option(g, h, batch, Linf))
