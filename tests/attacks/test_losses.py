import pytest
import torch

from adaptive_smoothing.attacks.objectives import (
    cross_entropy_loss,
    dlr_loss,
    logit_margin,
    margin_loss,
    targeted_dlr_loss,
    targeted_margin_loss,
)

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
