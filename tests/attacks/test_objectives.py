import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.objectives import (
    FlipStandard,
    LossObjective,
    LowerAlpha,
    cross_entropy,
    cross_entropy_loss,
    margin,
    targeted_dlr_loss,
    targeted_margin_loss,
)
from adaptive_smoothing.mixing.classifier import MixedClassifier


class Brightness(nn.Module):
    """An alpha that grows with the mean of an image and is never clipped."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (0.2 + 0.6 * images.mean((1, 2, 3))).clamp(0, 1)


class Logits(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.weight


@pytest.fixture
def mixed() -> MixedClassifier:
    return MixedClassifier(Logits(0), Logits(1), Brightness()).eval()


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
