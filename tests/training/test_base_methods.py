"""Each training method compared with the formula of its paper."""

import pytest
import torch
import torch.nn.functional as F

from adaptive_smoothing.attacks.objectives import kl_divergence
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.training.base_methods import TrainingBatch, make_base_method
from adaptive_smoothing.training.recipe import MethodSettings
from adaptive_smoothing.training.streams import StreamFunctions

EPS = 8 / 255


def batch(linear, epoch=9, correct=True, progress=1.0):
    images = 0.2 + 0.6 * torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = linear(images).argmax(1)
    if not correct:
        labels = (labels + 1) % 4
    noise = torch.Generator().manual_seed(1)
    return TrainingBatch(images, labels, torch.arange(16), epoch, noise, progress, second=images.flip(2))


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


@pytest.mark.parametrize("name", ["at", "trades"])
def test_the_attack_can_maximise_the_probability_margin(linear, name):
    """One step is enough for a linear model, and its gradient is known."""
    at = batch(linear)
    examples = method(name, attack_loss="margin", steps=1, step_size=2 * EPS).examples(linear, at)
    start = at.images.clone().requires_grad_()
    probabilities = linear(start).softmax(1)
    label = F.one_hot(at.labels, probabilities.shape[1])
    lead = (probabilities - 2 * label).amax(1) - (probabilities * label).sum(1)
    lead.sum().backward()
    nearly = (examples - at.images).sign() == start.grad.sign()
    assert nearly.float().mean() > 0.95  # the attack begins at random points, where another class may be the nearest
    assert ((examples - at.images).abs() - EPS).abs().max() < 1e-6


def half(images):
    return images.mean((2, 3))[:, :2] * 30


def test_the_loss_with_a_helper_by_hand():
    """HAT: the TRADES loss, and cross-entropy at a multiple of the perturbation, with the labels of the helper."""

    def helper(images):
        return images[:, :2, 0, 0]

    at = batch(half)
    settings = from_table(MethodSettings, {"name": "hat", "helper": "g", "beta": 3.0, "helper_length": 1.5})
    hat = make_base_method(settings, 16, torch.device("cpu"), helper)
    examples = at.images.flip(3) * 0.9
    loss, logits = hat.loss(half, at, examples)
    trades, attacked = method("trades", beta=3.0).loss(half, at, examples)
    further = at.images + 1.5 * (examples - at.images)
    labels = helper(examples).argmax(1)
    assert 0 < labels.sum() < 16
    expected = trades - 0.5 * half(further).log_softmax(1)[torch.arange(16), labels].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(logits, attacked)
    assert hat.perturbation_loss(half, at, examples).item() == pytest.approx(trades.item(), rel=1e-5)


def test_hat_needs_a_helper():
    with pytest.raises(ValueError, match=r"expected method\.helper with the method hat and only with it"):
        method("hat")
    with pytest.raises(ValueError, match="expected a helper for the method hat"):
        method("hat", helper="g")


@pytest.mark.parametrize("name", ["at", "trades"])
@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.0), (0.2, 0.25), (0.8, 1.0), (1.0, 1.0)])
def test_the_radius_grows(linear, name, progress, share):
    at = batch(linear, progress=progress)
    settings = {"radius_growth": 0.8, "steps": 5, "step_size": EPS}
    distance = (method(name, **settings).examples(linear, at) - at.images).abs().max().item()
    assert distance == pytest.approx(share * EPS, abs=1e-6)


def test_the_loss_of_two_streams_by_hand():
    """DAJAT: the mean of two TRADES losses, and the Jensen-Shannon divergence of the clean predictions."""

    def second(images):
        return half(images) * 0.5 + 1.0

    at = batch(half)
    first_attacked, second_attacked = at.images.flip(3) * 0.9, at.second * 0.7
    loss, logits = method("dajat", beta=3.0, consistency=2.0).loss(
        StreamFunctions(half, second), at, torch.cat([first_attacked, second_attacked])
    )
    p, p_attacked = half(at.images).softmax(1), half(first_attacked).softmax(1)
    q, q_attacked = second(at.second).softmax(1), second(second_attacked).softmax(1)

    def divergence(one, other):
        return (one * (one.log() - other.log())).sum(1).mean()

    natural = -(p.gather(1, at.labels[:, None]).log() + q.gather(1, at.labels[:, None]).log()).mean() / 2
    robust = 3.0 * (divergence(p, p_attacked) + divergence(q, q_attacked)) / 2
    average = (p + q) / 2
    joint = 2.0 * (divergence(p, average) + divergence(q, average)) / 2
    assert loss.item() == pytest.approx((natural + robust + joint).item(), rel=1e-4)
    assert torch.equal(logits, half(first_attacked))


def test_each_stream_is_attacked_with_its_own_network():
    """Each stream uses another channel, so an attack moves the pixels of that channel only."""

    def only(channel):
        return lambda images: images[:, channel].flatten(1)[:, :4] * 20

    at = batch(only(0))
    streams = StreamFunctions(only(0), only(2))
    settings = method("dajat", steps=1, step_size=EPS)
    first, second = settings.examples(streams, at).chunk(2)
    for channel, images, examples in ((0, at.images, first), (2, at.second, second)):
        moved = (examples - images).abs()[:, :, 0, :4].mean((0, 2))
        # The start is random, so the other channels move by half of eps on average.
        assert moved[channel] > 0.6 * EPS > moved[1]
    assert torch.equal(settings.inputs(at, torch.cat([first, second])), torch.cat([at.images, first]))
    perturbing = settings.perturbation_loss(streams, at, torch.cat([first, second]))
    assert perturbing.item() == pytest.approx(method("trades").loss(streams.first, at, first)[0].item(), rel=1e-5)


def test_two_streams_need_a_second_network_and_second_images(linear):
    at = batch(linear)
    with pytest.raises(TypeError, match="expected a network with two streams, got LinearClassifier"):
        method("dajat").examples(linear, at)
    with pytest.raises(ValueError, match=r"set data\.second_policy"):
        method("dajat").examples(StreamFunctions(linear, linear), at._replace(second=None))


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
