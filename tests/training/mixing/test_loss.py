"""The composite loss and the weight of attacked images against known answers."""

import math

import pytest
import torch

from adaptive_smoothing.training.mixing.loss import composite_loss
from adaptive_smoothing.training.mixing.recipe import LossSettings


def test_the_composite_loss_against_a_known_answer():
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    alpha, pseudo_labels = torch.tensor([0.25]), torch.tensor([1.0])
    l_ce, l_bce, l_error = 0.126928, 1.386294, 0.119203
    for c, expected in (
        ({"ce": 1.0, "bce": 0.0, "product": 0.0}, l_ce),
        ({"bce": 1.5, "product": 0.0}, 1.5 * l_bce),
        ({"bce": 0.0, "product": 2.0}, 2 * l_ce * l_bce),
        ({"bce": 0.0, "product": 0.0, "error": 1.0}, l_error),
        ({"ce": 1.0, "bce": 1.5, "product": 0.2}, l_ce + 1.5 * l_bce + 0.2 * l_ce * l_bce),
    ):
        found = composite_loss(LossSettings(**c), logits, alpha, labels, pseudo_labels)
        assert found.item() == pytest.approx(expected, abs=1e-5)


def test_the_error_term_is_a_sigmoid_of_the_margin():
    logits, labels, alpha = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.zeros(2).long(), torch.full((2,), 0.5)
    found = composite_loss(LossSettings(bce=0.0, product=0.0, error=1.0), logits, alpha, labels, torch.ones(2))
    torch.testing.assert_close(found, torch.sigmoid(torch.tensor([-1.0, 2.0])))


def test_a_saturated_alpha_has_a_bounded_loss_and_no_gradient():
    """At alpha = 0 and 1, against both pseudo labels."""
    alpha = torch.tensor([0.0, 0.0, 1.0, 1.0], requires_grad=True)
    logits, labels = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    loss = composite_loss(LossSettings(product=0.0), logits, alpha, labels, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    bound = -1.5 * math.log(1e-6)
    assert loss.tolist() == pytest.approx([0, bound, bound, 0], rel=0.01, abs=1e-4)
    (gradient,) = torch.autograd.grad(loss.sum(), alpha)
    assert not gradient.any()


def test_the_weight_of_attacked_images_cancels_the_slope_by_the_shift(toy, tmp_path):
    """Compared with finite differences of the losses of clean and attacked images."""
    recipe = toy.recipe("flip-standard", loss={"error": 1.0, "bce": 0.0, "product": 0.0, "balanced": True})
    run = toy.trainer(tmp_path, recipe)
    examples = run.examples(toy.first_batch(run))

    def losses(shift: float) -> torch.Tensor:
        mixed = run.mixed.with_sigmoid(1.0, shift).combine(examples.base_outputs, examples.images)
        return composite_loss(recipe.loss, mixed.logits, mixed.alpha, examples.labels, examples.pseudo_labels)

    with torch.no_grad():
        slopes = [half.mean().item() for half in ((losses(0.405) - losses(0.395)) / 0.01).chunk(2)]
    assert slopes[0] > 0 > slopes[1]
    run.loss(examples)
    assert run.attacked_weight.slopes.tolist() == pytest.approx(slopes, rel=0.02)
    loss = run.loss(examples)[0].item()  # the same batch again has the same weight
    weight = -slopes[0] / slopes[1]
    clean, attacked = (half.mean().item() for half in losses(0.4).chunk(2))
    assert 0.05 < weight < 2 and loss == pytest.approx((clean + weight * attacked) / (1 + weight), rel=0.01)
