"""Losses compared with hand calculation, and the objectives for mixed classifiers."""

import pytest
import torch
from torch import nn
from toys import Planes

from adaptive_smoothing.attacks.objectives import (
    FlipStandard,
    KLDivergence,
    LossObjective,
    LowerAlpha,
    cross_entropy,
    cross_entropy_loss,
    dlr_loss,
    kl_divergence,
    logit_margin,
    loss_and_gradient,
    margin,
    margin_loss,
    targeted_dlr_loss,
    targeted_margin,
    targeted_margin_loss,
)
from adaptive_smoothing.mixing.classifier import MixedClassifier

# The best wrong class of the first is 3, of the second 0; the third is a tie.
LOGITS = torch.tensor([[1.0, 5.0, -2.0, 4.0, 0.5], [3.0, 1.0, 2.0, -1.0, 0.0], [2.0, 2.0, 0.0, 0.0, -1.0]])
LABELS = torch.tensor([1, 2, 0])
TARGETS = torch.tensor([3, 1, 4])


def test_margins_match_hand_calculation():
    assert logit_margin(LOGITS, LABELS).tolist() == [-1, 1, 0]
    assert margin_loss(LOGITS, LABELS).tolist() == [-1, 1, 0]
    assert targeted_margin_loss(LOGITS, LABELS, TARGETS).tolist() == [-1, -1, -3]


def test_dlr_matches_hand_calculation():
    """Divide by the first minus the third logit; if targeted, by the first minus the mean of the third and fourth."""
    assert dlr_loss(LOGITS, LABELS).tolist() == pytest.approx([-1 / (5 - 1), 1 / (3 - 1), 0])
    expected = [-1 / (5 - 0.75), -1 / (3 - 0.5), -3 / (2 - 0)]
    assert targeted_dlr_loss(LOGITS, LABELS, TARGETS).tolist() == pytest.approx(expected)


def test_cross_entropy_matches_hand_calculation():
    expected = [-(row[label] - row.exp().sum().log()).item() for row, label in zip(LOGITS, LABELS, strict=True)]
    assert cross_entropy_loss(LOGITS, LABELS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [dlr_loss, targeted_dlr_loss])
def test_dlr_depends_on_neither_scale_nor_shift(loss):
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    labels, targets = torch.arange(20) % 6, (torch.arange(20) + 1) % 6
    expected = loss(logits, labels, targets)
    for changed in (1000 * logits, logits / 1000, logits + 7):
        assert torch.allclose(loss(changed, labels, targets), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_below_four_classes_dlr_is_the_margin(classes):
    logits = torch.randn(9, classes, generator=torch.Generator().manual_seed(0))
    labels, targets = torch.arange(9) % classes, (torch.arange(9) + 1) % classes
    assert torch.equal(dlr_loss(logits, labels), logit_margin(logits, labels))
    assert torch.equal(targeted_dlr_loss(logits, labels, targets), targeted_margin_loss(logits, labels, targets))


@pytest.mark.parametrize("loss", [dlr_loss, targeted_dlr_loss])
def test_dlr_of_equal_logits_is_zero(loss):
    assert loss(torch.ones(2, 5), torch.tensor([0, 1]), torch.tensor([1, 0])).tolist() == [0, 0]


def test_losses_of_bfloat16_logits_are_float32():
    logits = torch.tensor([[1000.0, 999.0, 0, 0]], dtype=torch.bfloat16)
    for loss in (margin_loss, targeted_margin_loss, dlr_loss, targeted_dlr_loss, cross_entropy_loss):
        assert loss(logits, torch.tensor([0]), torch.tensor([1])).dtype == torch.float32


@pytest.mark.parametrize("loss", [targeted_margin_loss, targeted_dlr_loss])
def test_a_targeted_loss_requires_targets(loss):
    with pytest.raises(ValueError, match="expected a target class per image for a targeted loss, got none"):
        loss(LOGITS, LABELS, None)


def test_kl_is_zero_at_the_reference_and_matches_the_formula_elsewhere():
    p, q = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.5, 0.5]])
    expected = (p * (p / q).log()).sum()
    assert kl_divergence(p.log() + 3, q.log()).item() == pytest.approx(expected.item())
    loss, _ = KLDivergence(p.log())(lambda x: p.log(), torch.zeros(1), torch.zeros(1))
    assert loss.item() == pytest.approx(0, abs=1e-7)


# --- objectives -----------------------------------------------------------------------------------------


class MeanAlpha(nn.Module):
    """An alpha that grows with the mean of an image and is never clipped."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (0.2 + 0.6 * images.mean((1, 2, 3))).clamp(0, 1)


@pytest.fixture
def mixed() -> MixedClassifier:
    g, h = (Planes(4, (3, 2, 2), seed) for seed in range(2))
    return MixedClassifier(g, h, MeanAlpha().eval())


IMAGES = torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(2))
CLASSES = torch.tensor([0, 1, 2, 3, 0])


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("loss", [cross_entropy_loss, targeted_dlr_loss])
def test_lower_alpha_is_a_weighted_sum(mixed, weight, loss):
    targets = (CLASSES + 1) % 4
    found, logits = LowerAlpha(loss, weight)(mixed, IMAGES, CLASSES, targets)
    expected = (1 - weight) * loss(mixed(IMAGES), CLASSES, targets) - weight * mixed.mix(IMAGES).alpha.log()
    assert torch.allclose(found, expected) and torch.equal(logits, mixed(IMAGES))


def test_the_gradient_of_lower_alpha_lowers_alpha(mixed):
    images = IMAGES.clone().requires_grad_()
    loss, _ = LowerAlpha(cross_entropy_loss, 1.0)(mixed, images, CLASSES)
    (gradient,) = torch.autograd.grad(loss.sum(), images)
    alpha = mixed.mix(IMAGES).alpha
    assert torch.allclose(gradient, (-0.6 / 12 / alpha).view(-1, 1, 1, 1).expand_as(gradient))
    assert (mixed.mix((IMAGES + 0.1 * gradient).clamp(0, 1)).alpha < alpha).all()


def test_flip_standard_adds_the_margin_of_the_target_in_g_up_to_a_bound(mixed):
    targets = (CLASSES + 1) % 4
    loss = targeted_margin_loss(mixed(IMAGES), CLASSES, targets)
    lead = torch.stack(
        [
            row[target] - torch.cat([row[:target], row[target + 1 :]]).amax()
            for row, target in zip(mixed.standard(IMAGES), targets, strict=True)
        ]
    )
    bound = lead.median().item()
    assert (lead < bound).any() and (lead > bound).any()
    found, logits = FlipStandard(targeted_margin_loss, bound)(mixed, IMAGES, CLASSES, targets)
    torch.testing.assert_close(found, loss + lead.clamp(max=bound))
    assert torch.equal(logits, mixed(IMAGES))


def test_flip_standard_ignores_a_g_that_is_confident_of_the_target(mixed):
    images, targets = IMAGES.clone().requires_grad_(), mixed.standard(IMAGES).argmax(1)
    gradients = [
        torch.autograd.grad(objective(mixed, images, CLASSES, targets)[0].sum(), images)[0]
        for objective in (LossObjective(targeted_margin_loss), FlipStandard(targeted_margin_loss, max_lead=-1.0))
    ]
    assert torch.equal(*gradients)


def test_an_alpha_of_zero_gives_a_finite_loss_and_gradient(mixed):
    class Zero(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 0 * images.mean((1, 2, 3))

    images = IMAGES.clone().requires_grad_()
    loss, _ = LowerAlpha(cross_entropy_loss, 0.5)(mixed.with_alpha(Zero().eval()), images, CLASSES)
    (gradient,) = torch.autograd.grad(loss.sum(), images)
    assert loss.isfinite().all() and gradient.isfinite().all()


def test_objectives_with_the_same_loss_are_equal():
    """Engines and journals compare attacks by their objectives."""
    same = LossObjective(cross_entropy_loss)
    assert same == cross_entropy and hash(same) == hash(cross_entropy)
    assert cross_entropy != margin
    assert LowerAlpha(cross_entropy_loss, 0.1) != LowerAlpha(cross_entropy_loss, 0.5)


def test_the_gradient_of_a_loss_that_does_not_depend_on_the_images_is_zero():
    model, images, labels = Planes(4, (3, 2, 2)), IMAGES.clone(), CLASSES
    loss, logits, gradient = loss_and_gradient(cross_entropy, lambda images: model(images.detach()), images, labels)
    assert torch.equal(logits, model(images)) and (gradient == 0).all() and not loss.requires_grad
    targets = (labels + 1) % 4
    _, _, gradient = loss_and_gradient(targeted_margin, model, images, labels, targets)
    expected = (model.weight[targets] - model.weight[labels]).view_as(images)
    torch.testing.assert_close(gradient, expected.detach())
