"""Every R_i, form and kind of score compared with loops of autograd; MixedClassifier as a special case."""

import pytest
import torch
from smooth_networks import CLASSES, images, network
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.gradient_mixture import R_OPTIONS, GradientMixedClassifier
from adaptive_smoothing.threat import L2, Linf

GAMMA = 0.7


G, H = network(0), network(1)


def slow_mixture(image: Tensor, r: str, on: str, form: str, norm: type) -> Tensor:
    """The paper's equations for one image, one class at a time."""

    def scores(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)[0] if on == "logits" else model(x)[0].softmax(0)

    def size(model: nn.Module, i: int) -> Tensor:
        x = image[None].clone().requires_grad_()
        gradient = torch.autograd.grad(scores(model, x)[i], x)[0]
        return gradient.abs().sum() if norm is Linf else gradient.square().sum().sqrt()

    g, h = scores(G, image[None]), scores(H, image[None])
    mixed = []
    for i in range(CLASSES):
        R = {
            "one": lambda i: torch.ones(()),
            "standard_gradient": lambda i: size(G, i),
            "predicted_gradient": lambda i: size(G, int(g.argmax())),
            "gradient_ratio": lambda i: size(G, i) / size(H, i),
        }[r](i)
        total = g[i] + GAMMA * R * h[i]
        mixed.append(total if form == "sum" else total / (1 + GAMMA * R))
    return torch.stack(mixed) if on == "logits" else torch.stack(mixed).log()


@pytest.mark.parametrize("norm", [Linf, L2])
@pytest.mark.parametrize("form", ["normalised", "sum"])
@pytest.mark.parametrize("on", ["logits", "probabilities"])
@pytest.mark.parametrize("r", list(R_OPTIONS))
def test_equals_the_equations(r, on, form, norm):
    mixed = GradientMixedClassifier(G, H, GAMMA, r=r, on=on, form=form, norm=norm)
    expected = torch.stack([slow_mixture(image, r, on, form, norm) for image in images()])
    torch.testing.assert_close(mixed(images()), expected.detach())


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
