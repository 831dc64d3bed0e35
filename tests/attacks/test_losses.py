import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.losses import (
    cross_entropy_loss,
    dlr_loss,
    logit_margin,
    margin_loss,
    targeted_dlr_loss,
    targeted_margin_loss,
)
from adaptive_smoothing.attacks.objectives import FlipStandard, LossObjective, LowerAlpha, cross_entropy, margin
from adaptive_smoothing.mixing.classifier import MixedClassifier

# The best wrong class of the first is 3, of the second 0; the third is a tie.
LOGITS = torch.tensor([[1.0, 5.0, -2.0, 4.0, 0.5], [3.0, 1.0, 2.0, -1.0, 0.0], [2.0, 2.0, 0.0, 0.0, -1.0]])
LABELS = torch.tensor([1, 2, 0])
TARGETS = torch.tensor([3, 1, 4])


def test_margins_by_hand():
    assert logit_margin(LOGITS, LABELS).tolist() == [-1, 1, 0]
    assert margin_loss(LOGITS, LABELS).tolist() == [-1, 1, 0]
    assert targeted_margin_loss(LOGITS, LABELS, TARGETS).tolist() == [-1, -1, -3]


def test_dlr_by_hand():
    """The margin over the first minus the third; targeted over the first minus the mean of the third and fourth."""
    assert dlr_loss(LOGITS, LABELS).tolist() == pytest.approx([-1 / (5 - 1), 1 / (3 - 1), 0])
    expected = [-1 / (5 - 0.75), -1 / (3 - 0.5), -3 / (2 - 0)]
    assert targeted_dlr_loss(LOGITS, LABELS, TARGETS).tolist() == pytest.approx(expected)


def test_cross_entropy_by_hand():
    expected = [-(row[label] - row.exp().sum().log()).item() for row, label in zip(LOGITS, LABELS, strict=True)]
    assert cross_entropy_loss(LOGITS, LABELS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [dlr_loss, targeted_dlr_loss])
def test_dlr_knows_neither_scale_nor_shift(loss):
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
def test_equal_logits_are_no_division_by_zero(loss):
    assert loss(torch.ones(2, 5), torch.tensor([0, 1]), torch.tensor([1, 0])).tolist() == [0, 0]


def test_half_precision_is_widened_before_it_is_subtracted():
    logits = torch.tensor([[1000.0, 999.0, 0, 0]], dtype=torch.bfloat16)
    for loss in (margin_loss, targeted_margin_loss, dlr_loss, targeted_dlr_loss, cross_entropy_loss):
        assert loss(logits, torch.tensor([0]), torch.tensor([1])).dtype == torch.float32


@pytest.mark.parametrize("loss", [targeted_margin_loss, targeted_dlr_loss])
def test_a_targeted_loss_wants_targets(loss):
    with pytest.raises(ValueError, match="expected a target class per image for a targeted loss, got none"):
        loss(LOGITS, LABELS, None)


# --- objectives ---------------------------------------------------------------------------------------


class Brightness(nn.Module):
    """Alpha grows with the mean of an image."""

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
def test_lower_alpha_is_the_weighted_sum(mixed, weight, loss):
    targets = (CLASSES + 1) % 4
    found, logits = LowerAlpha(loss, weight)(mixed, IMAGES, CLASSES, targets)
    expected = (1 - weight) * loss(mixed(IMAGES), CLASSES, targets) - weight * mixed.mix(IMAGES).alpha.log()
    assert torch.allclose(found, expected) and torch.equal(logits, mixed(IMAGES))


def test_the_gradient_of_lower_alpha_pushes_alpha_down(mixed):
    images = IMAGES.clone().requires_grad_()
    loss, _ = LowerAlpha(cross_entropy_loss, 1.0)(mixed, images, CLASSES)
    (gradient,) = torch.autograd.grad(loss.sum(), images)
    alpha = mixed.mix(IMAGES).alpha
    assert torch.allclose(gradient, (-0.6 / 12 / alpha).view(-1, 1, 1, 1).expand_as(gradient))
    assert (mixed.mix((IMAGES + 0.1 * gradient).clamp(0, 1)).alpha < alpha).all()


def test_turning_g_adds_the_lead_of_the_target_in_g_up_to_a_bound(mixed):
    targets = (CLASSES + 1) % 4
    loss = targeted_margin_loss(mixed(IMAGES), CLASSES, targets)
    lead = torch.stack(
        [
            row[target] - torch.cat([row[:target], row[target + 1 :]]).amax()
            for row, target in zip(mixed.standard(IMAGES), targets, strict=True)
        ]
    )
    sure = lead.median().item()
    assert (lead < sure).any() and (lead > sure).any()
    found, logits = FlipStandard(targeted_margin_loss, sure)(mixed, IMAGES, CLASSES, targets)
    torch.testing.assert_close(found, loss + lead.clamp(max=sure))
    assert torch.equal(logits, mixed(IMAGES))


def test_a_g_that_is_sure_of_the_target_is_left_alone(mixed):
    images, targets = IMAGES.clone().requires_grad_(), mixed.standard(IMAGES).argmax(1)
    gradients = [
        torch.autograd.grad(objective(mixed, images, CLASSES, targets)[0].sum(), images)[0]
        for objective in (LossObjective(targeted_margin_loss), FlipStandard(targeted_margin_loss, max_lead=-1.0))
    ]
    assert torch.equal(*gradients)


def test_an_alpha_of_zero_is_no_infinity(mixed):
    class Zero(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 0 * images.mean((1, 2, 3))

    images = IMAGES.clone().requires_grad_()
    loss, _ = LowerAlpha(cross_entropy_loss, 0.5)(mixed.with_alpha(Zero().eval()), images, CLASSES)
    (gradient,) = torch.autograd.grad(loss.sum(), images)
    assert loss.isfinite().all() and gradient.isfinite().all()


def test_objectives_of_the_same_loss_are_the_same():
    """Engines and journals tell attacks apart by them."""
    assert LossObjective(cross_entropy_loss) == cross_entropy and hash(LossObjective(cross_entropy_loss)) == hash(
        cross_entropy
    )
    assert cross_entropy != margin
    assert LowerAlpha(cross_entropy_loss, 0.1) != LowerAlpha(cross_entropy_loss, 0.5)
