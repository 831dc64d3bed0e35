"""R_i and the mixtures with it, compared with gradients of one image and one class at a time."""

import pytest
import torch
from smooth_networks import CLASSES, images, network
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.gradient_mixture import (
    R_OPTIONS,
    GradientMixedClassifier,
    class_gradient_norms,
    gradient_ratio,
    predicted_gradient,
)
from adaptive_smoothing.threat import L2, Linf, Threat

GAMMA = 0.7
G, H = network(0), network(1)


def slow_norms(model: nn.Module, batch: Tensor, norm: type[Threat]) -> Tensor:
    """Dual norms of gradients, by a loop over images and classes."""
    rows = torch.zeros(len(batch), CLASSES, dtype=batch.dtype)
    for n, image in enumerate(batch):
        for i in range(CLASSES):
            leaf = image[None].clone().requires_grad_()
            gradient = torch.autograd.grad(model(leaf)[0, i], leaf)[0]
            rows[n, i] = gradient.abs().sum() if norm is Linf else gradient.square().sum().sqrt()
    return rows


def slow_r(g: nn.Module, h: nn.Module, batch: Tensor, norm: type[Threat]) -> dict[str, Tensor]:
    """Every R_i by the paper's definitions."""
    of_g, of_h = slow_norms(g, batch, norm), slow_norms(h, batch, norm)
    return {
        "one": torch.ones(len(batch), 1, dtype=batch.dtype),
        "standard_gradient": of_g,
        "predicted_gradient": of_g.gather(1, g(batch).argmax(1, keepdim=True)),
        "gradient_ratio": of_g / of_h,
    }


def slow_mixture(batch: Tensor, r: str, on: str, form: str, norm: type[Threat]) -> Tensor:
    """The paper's equations."""
    g, h = (model if on == "logits" else nn.Sequential(model, nn.Softmax(1)) for model in (G, H))
    weight = GAMMA * slow_r(g, h, batch, norm)[r]
    mixed = g(batch) + weight * h(batch)
    if form == "normalised":
        mixed = mixed / (1 + weight)
    return (mixed if on == "logits" else mixed.log()).detach()


@pytest.mark.parametrize("norm", [Linf, L2])
@pytest.mark.parametrize("form", ["normalised", "sum"])
@pytest.mark.parametrize("on", ["logits", "probabilities"])
@pytest.mark.parametrize("r", list(R_OPTIONS))
def test_equals_the_equations(r, on, form, norm):
    mixed = GradientMixedClassifier(G, H, GAMMA, r=r, on=on, form=form, norm=norm)
    torch.testing.assert_close(mixed(images()), slow_mixture(images(), r, on, form, norm))


@pytest.mark.parametrize("on", ["logits", "probabilities"])
@pytest.mark.parametrize("r", list(R_OPTIONS))
def test_gradients_include_that_of_r(r, on):
    mixed = GradientMixedClassifier(G, H, GAMMA, r=r, on=on, norm=L2)
    assert torch.autograd.gradcheck(mixed, (images(2).requires_grad_(),))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 9.0])
def test_r_one_on_probabilities_is_the_mixed_classifier(gamma):
    ours = GradientMixedClassifier(G, H, gamma)(images())
    torch.testing.assert_close(ours, MixedClassifier(G, H, gamma / (1 + gamma))(images()), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("r", list(R_OPTIONS))
def test_gamma_zero_is_the_standard_classifier(r):
    mixed = GradientMixedClassifier(G, H, 0.0, r=r, on="logits")
    assert torch.equal(mixed(images()), G(images()))


def test_works_without_gradients_and_keeps_the_bases_in_eval_mode():
    mixed = GradientMixedClassifier(G, H, GAMMA, r="standard_gradient").train()
    expected = mixed(images())
    with torch.no_grad():
        assert torch.equal(mixed(images()), expected)
    assert not G.training and not H[1].training


def test_gamma_is_part_of_the_state():
    mixed = GradientMixedClassifier(G, H, GAMMA)
    assert mixed.state_dict()["gamma"] == GAMMA and "gamma=0.7, r='one'" in repr(mixed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -1.0}, "finite number >= 0, got -1"),
        ({"gamma": float("inf")}, "the robust classifier itself"),
        ({"r": "two"}, "expected r to be one of one, standard_gradient.*got 'two'"),
        ({"form": "product"}, "expected form to be one of normalised, sum, got 'product'"),
        ({"on": "votes"}, "expected on to be one of probabilities, logits, got 'votes'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        GradientMixedClassifier(G, H, **{"gamma": 1.0} | settings)


def test_a_threat_stands_for_its_norm():
    given = GradientMixedClassifier(G, H, GAMMA, r="standard_gradient", norm=L2(0.5))
    expected = GradientMixedClassifier(G, H, GAMMA, r="standard_gradient", norm=L2)
    assert torch.equal(given(images()), expected(images()))


@pytest.mark.parametrize("norm", ["Linf", 2, int])
def test_a_norm_that_is_no_threat(norm):
    with pytest.raises(TypeError, match=r"expected norm as a threat, got .*: pass ads.Linf or ads.L2"):
        GradientMixedClassifier(G, H, GAMMA, norm=norm)


# --- R_i


@pytest.mark.parametrize("norm", [Linf, L2])
@pytest.mark.parametrize("classes_at_once", [1, 2, 16])
def test_class_gradient_norms_equal_those_of_a_loop(norm, classes_at_once):
    norms = class_gradient_norms(G, images(), norm, classes_at_once)
    torch.testing.assert_close(norms, slow_norms(G, images(), norm))


@pytest.mark.parametrize("norm", [Linf, L2])
def test_the_four_r_options(norm):
    expected = slow_r(G, H, images(), norm)
    assert set(R_OPTIONS) == set(expected)
    for name, option in R_OPTIONS.items():
        torch.testing.assert_close(option(G, H, images(), norm), expected[name])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", list(R_OPTIONS))
def test_the_mode_of_the_caller_changes_nothing(name, mode):
    r = R_OPTIONS[name]
    expected = r(G, H, images(), Linf)
    with mode():
        found, batch = r(G, H, images(), Linf), images()
    assert torch.equal(found, expected) and not found.requires_grad
    assert torch.equal(r(G, H, batch, Linf), expected)  # images that were made in that mode


@pytest.mark.parametrize("name", ["standard_gradient", "predicted_gradient", "gradient_ratio"])
def test_gradients_of_r_by_finite_differences(name):
    batch = images(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: R_OPTIONS[name](G, H, x, L2), (batch,))


class Flat(nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        return batch.flatten(1)[:, :CLASSES] * 0


@pytest.mark.parametrize("norm", [Linf, L2])
def test_a_flat_classifier_leaves_the_ratio_finite(norm):
    g, flat = network(0).float(), Flat()
    batch = images().float().requires_grad_()
    steep = gradient_ratio(g, flat, batch, norm)
    assert steep.isfinite().all() and (steep > 1e6).all()
    assert torch.autograd.grad((steep / (1 + steep)).sum(), batch)[0].isfinite().all()
    assert torch.equal(gradient_ratio(flat, flat, batch, norm), torch.ones(3, CLASSES))


def test_r_compiles():
    batch = images()
    for option in (predicted_gradient, gradient_ratio):
        compiled = torch.compile(lambda x, option=option: option(G, H, x, Linf), backend="aot_eager")
        torch.testing.assert_close(compiled(batch), option(G, H, batch, Linf))
