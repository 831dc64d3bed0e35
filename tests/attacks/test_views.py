"""Views of a mixed classifier, and the paper's settings that use them."""

import pytest
import torch
from toys import CPU, Brightness, Planes, make_images, make_input, mixed

from adaptive_smoothing.attacks.cascade import CascadeState, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.attacks.views import AtAlpha, Base, GrayBox, SmoothedSurrogate
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.threat import Linf

LINF = Linf(8 / 255)


def alpha_gradient(model, images):
    images = images.clone().requires_grad_()
    alpha = model.mix(images).alpha
    return torch.autograd.grad(alpha.sum(), images)[0] if alpha.requires_grad else None


def attacked_view(name, model):
    """Return the view of the model that a preset with one PGD-20 attacks."""
    (stage,) = preset(name, LINF).for_model(model).stages
    assert (stage.attack.steps, stage.attack.random_start) == (20, False)
    return model if stage.source is None else stage.source(model)


def test_the_gray_box_has_the_same_logits_without_the_gradient_of_alpha():
    model, images = mixed(Brightness()), make_images(5, low=0.48, high=0.52)
    gray = GrayBox()(model)
    assert alpha_gradient(gray, images) is None
    assert (alpha_gradient(model, images) != 0).any()
    assert torch.equal(gray(images), model(images))
    plain = Planes()
    assert GrayBox()(plain) is plain


def test_settings_a_and_b_differ_by_the_gradient_of_alpha():
    model, images = mixed(Brightness()), make_images(5, low=0.48, high=0.52)
    assert alpha_gradient(attacked_view("A", model), images) is None
    assert (alpha_gradient(attacked_view("B", model), images) != 0).any()
    assert attacked_view("MIX", model) is model


def test_std_and_rob_attack_g_and_h():
    model = mixed(0.5)
    assert attacked_view("STD", model) is model.standard and attacked_view("ROB", model) is model.robust
    hard = mixed(0.5, standard=Hardmax(model.standard))
    assert Base("standard")(hard) is model.standard  # which has a gradient


@pytest.mark.parametrize(("name", "role"), [("STD", "standard"), ("ROB", "robust")])
def test_a_model_that_is_no_mixture_has_no_base_classifiers_to_attack(name, role):
    model = Planes()
    inputs = make_input(model, make_images(2), LINF)
    (stage,) = preset(name, LINF).stages
    with pytest.raises(ValueError, match=f"expected a mixture, whose {role} .* got Planes: mix two models"):
        run_stage(Engine(model, CPU), 0, stage, inputs, CascadeState.before(inputs))


def test_an_attack_on_g_is_checked_on_the_mixture():
    """At alpha = 1 the mixture is h, which an attack on g does not fool; at alpha = 0 it is g."""
    (stage,) = preset("STD", Linf(0.03)).stages
    fooled = []
    for alpha in (0.0, 1.0):
        model = mixed(alpha)
        inputs = make_input(model, make_images(20), Linf(0.03))
        state = CascadeState.before(inputs)
        run_stage(Engine(model, CPU), 0, stage, inputs, state)
        fooled.append(int((state.fooled_by == 0).sum()))
    assert fooled[0] == 20 and fooled[1] < 15


def test_views_with_another_alpha_or_without_hardmax():
    model, images = mixed(Brightness(), standard=Hardmax(Planes(seed=0))), make_images(5)
    narrow = model.with_alpha_range(0.2, 0.6)
    assert AtAlpha(0.9)(narrow).mix(images).alpha.tolist() == pytest.approx([0.9] * 5)
    assert isinstance(SmoothedSurrogate()(model).standard, Planes)
