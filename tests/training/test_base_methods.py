"""Each training method compared with the formula of its paper."""

import pytest
import torch
import torch.nn.functional as F

from adaptive_smoothing.attacks.objectives import kl_divergence
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.training.base_methods import TrainingBatch, make_base_method
from adaptive_smoothing.training.recipe import MethodSettings

EPS = 8 / 255


def batch(linear, epoch=9, correct=True):
    images = 0.2 + 0.6 * torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = linear(images).argmax(1)
    if not correct:
        labels = (labels + 1) % 4
    return TrainingBatch(images, labels, torch.arange(16), epoch, torch.Generator().manual_seed(1))


def method(name, **settings):
    return make_base_method(from_table(MethodSettings, {"name": name, **settings}), 16, torch.device("cpu"))


def test_standard_is_cross_entropy_with_label_smoothing(linear):
    at = batch(linear)
    loss, logits = method("standard", label_smoothing=0.1).loss(linear, at, at.images)
    log = logits.log_softmax(1)
    by_hand = -(0.9 * log.gather(1, at.labels[:, None]).squeeze(1) + 0.1 * log.mean(1)).mean()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_gaussian_adds_noise_of_its_sigma(linear):
    at = batch(linear)
    noise = method("gaussian", sigma=0.5).examples(linear, at) - at.images
    assert noise.std().item() == pytest.approx(0.5, rel=0.05) and abs(noise.mean().item()) < 0.03


def test_adversarial_examples_raise_the_loss_within_the_ball(linear):
    at = batch(linear)
    examples = method("at").examples(linear, at)
    assert (examples - at.images).abs().max() <= EPS + 1e-6
    assert F.cross_entropy(linear(examples), at.labels) > F.cross_entropy(linear(at.images), at.labels) + 0.1


def test_trades_loss_by_hand(linear):
    at = batch(linear)
    examples = at.images.flip(3)
    p, q = (linear(x).softmax(1) for x in (at.images, examples))
    natural = F.cross_entropy(linear(at.images), at.labels)
    divergence = (p * (p.log() - q.log())).sum(1).mean()
    for beta in (0.0, 5.0):
        loss, logits = method("trades", beta=beta).loss(linear, at, examples)
        assert loss.item() == pytest.approx((natural + beta * divergence).item(), rel=1e-4)
    assert torch.allclose(logits, linear(examples), atol=1e-5)


def test_trades_attacks_the_divergence(linear):
    """On misclassified images, cross-entropy and divergence have different gradients."""
    at = batch(linear, correct=False)
    ours, plain = (method(name).examples(linear, at) for name in ("trades", "at"))
    moved = [kl_divergence(linear(at.images), linear(examples)).mean() for examples in (ours, plain)]
    assert moved[0] > moved[1]
    assert (ours - at.images).abs().max() <= EPS + 1e-6


class Answers(torch.nn.Module):
    """Correct or not on the clean image, and correct up to a radius around it."""

    def __init__(self, images, labels, clean, radius):
        super().__init__()
        self.images, self.labels, self.clean, self.radius = images, labels, clean, radius

    def forward(self, x):
        distance = (x.detach() - self.images).flatten(1).abs().amax(1)
        correct = torch.where(distance < 1e-6, torch.tensor(self.clean), distance <= self.radius + 1e-6)
        other = (self.labels + 1) % 4
        return F.one_hot(torch.where(correct, self.labels, other), 4).float() + 0 * x.sum()


@pytest.mark.parametrize(
    ("clean", "radius", "expected"),
    [
        (True, 1.0, EPS + 0.1 * 1.9 / 255),  # robust at radius + step: grows
        (True, EPS + 0.5 / 255, EPS),  # robust at its radius only: stays
        (True, 0.0, EPS - 0.1 * 1.9 / 255),  # not robust at its radius: shrinks
        (False, 1.0, 0.9 * EPS),  # misclassified without an attack: shrinks to 0
    ],
)
def test_iaat_moves_radii_as_balaji_does(linear, clean, radius, expected):
    at = batch(linear)
    iaat = method("iaat")
    iaat.examples(Answers(at.images, at.labels, clean, radius), at)
    assert torch.allclose(iaat.state()["radius"], torch.full((16,), expected), atol=1e-7)


def test_iaat_warm_up_gives_eps_to_correct_images(linear):
    at = batch(linear, epoch=0)
    iaat = method("iaat")
    half = at._replace(labels=torch.where(torch.arange(16) < 8, at.labels, (at.labels + 1) % 4))
    examples = iaat.examples(linear, half)
    expected = torch.where(torch.arange(16) < 8, EPS, 0.0)
    assert torch.allclose(iaat.state()["radius"], expected)
    assert torch.allclose((examples - at.images).flatten(1).abs().amax(1), expected, atol=1e-6)


def test_iaat_reaches_the_border_of_a_larger_radius(linear):
    at = batch(linear)
    iaat = method("iaat")
    iaat.radius.fill_(40 / 255)
    examples = iaat.examples(linear, at)
    assert (examples - at.images).flatten(1).abs().amax(1).min() > 39 / 255
