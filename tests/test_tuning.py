import math

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.mixing.mixer import Advice, Mixer
from adaptive_smoothing.tuning import (
    EVALUATIONS,
    SATURATED,
    CleanAccuracy,
    clean_accuracy,
    dial_accuracy,
    right_interval,
    shift_accuracy,
    turned,
)

THREAT = ads.Linf(8 / 255)


class Scored(Mixer):
    """A score that is a fixed linear map of both logits, and another h than h."""

    def forward(self, evidence):
        weights = torch.randn(evidence.g.shape[1], generator=torch.Generator().manual_seed(5))
        return Advice((evidence.h - evidence.g) @ weights, 1.5 * evidence.h)


def probabilities(count, classes=5, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)).double().softmax(1)


@pytest.fixture
def robust(linear):
    return type(linear)(seed=1).eval()


@pytest.fixture
def data(linear, robust):
    """Half of the images are labelled by g, a quarter each by h and by nobody."""
    pixels = torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = linear(pixels / 255).argmax(1)
    labels[::4] = robust(pixels[::4] / 255).argmax(1)
    labels[1::4] = torch.arange(75) % 4
    return from_tensors(pixels, labels)


def reading(curve, mixed, data, setting):
    """The predicted and the measured accuracy at a setting."""
    return curve(turned(mixed, setting).alpha_shift.item()), ads.evaluate(turned(mixed, setting), data).clean


def test_interval_agrees_with_the_mixture_at_every_alpha():
    g, h, labels = probabilities(400), probabilities(400, seed=1), torch.arange(400) % 5
    low, high = right_interval(g, h, labels)
    for alpha in np.linspace(0, 1, 41):
        right = ((1 - alpha) * g + alpha * h).argmax(1) == labels
        assert torch.equal(right, (low < alpha) & (alpha < high))


def test_steps_are_exact_and_complete():
    g, h, labels = probabilities(60), probabilities(60, seed=1), torch.arange(60) % 5
    curve = CleanAccuracy(*(end.numpy() for end in right_interval(g, h, labels)))
    alphas, accuracy = curve.steps()
    assert alphas[0] == 0 and alphas[-1] == 1 and (np.diff(alphas) >= 0).all()
    assert np.allclose([curve(alpha) for alpha in alphas], accuracy)
    dense = np.linspace(0, 1, 5001)
    assert max(map(curve, dense)) <= accuracy.max() + 1e-12


def test_steps_keep_to_what_float32_can_hit():
    """A g that is certain and an h that is nearly so tie close to 1/2, in ever narrower stretches."""
    curve = CleanAccuracy(np.full(3, -np.inf), 0.5 + np.array([1e-9, 2e-9, 0.1]))
    assert curve.largest(1.0) == pytest.approx(0.25) and curve.largest(0.6) == pytest.approx(0.25)
    assert curve.largest(0.3) == pytest.approx(0.55)


def test_steps_of_a_shift_go_beyond_all_numbers():
    curve = CleanAccuracy(np.array([-np.inf, 3.0, np.inf]), np.array([-2.0, np.inf, -np.inf]), (-10, 10), "shift")
    settings, accuracy = curve.steps()
    assert settings.tolist() == [-10, -6, 0.5, 6.5, 10]
    assert np.allclose(accuracy, np.array([1, 1, 0, 1, 1]) / 3)
    assert curve.largest(0.3) == 10
    with pytest.raises(ValueError, match=r"best on 3 images is 0\.333, at shift -10"):
        curve.largest(0.5)


def test_largest_alpha_is_the_last_that_reaches_the_target():
    curve = CleanAccuracy(low=np.array([-np.inf, -np.inf, 0.2, 0.6]), high=np.array([np.inf, 0.5, np.inf, np.inf]))
    assert curve(0.1) == 0.5 and curve(0.3) == 0.75 and curve(0.55) == 0.5 and curve(0.9) == 0.75
    assert curve.largest_alpha(0.75) == 1.0
    assert curve.largest_alpha(0.5) == 1.0


def test_what_is_offered_can_be_had():
    curve = CleanAccuracy(np.array([0.5, -np.inf, -np.inf]), np.array([np.inf, 0.4, np.inf]))
    with pytest.raises(ValueError, match=r"on 3 images is 0\.666, at alpha .*; ask for at most that"):
        curve.largest_alpha(0.9)
    curve.largest_alpha(0.666)


def test_curves_are_kept_with_their_dial(tmp_path):
    curve = CleanAccuracy(np.array([-np.inf, 1.0]), np.array([2.0, np.inf]), (-3.0, 4.0), "shift")
    curve.save(tmp_path / "curve.npz")
    loaded = CleanAccuracy.load(tmp_path / "curve.npz")
    assert loaded.span == (-3.0, 4.0) and loaded.dial == "shift"
    assert np.array_equal(loaded.low, curve.low) and np.array_equal(loaded.high, curve.high)
    np.savez(tmp_path / "early.npz", low=curve.low, high=curve.high)
    early = CleanAccuracy.load(tmp_path / "early.npz")
    assert early.span == (0.0, 1.0) and early.dial == "alpha"


def test_tune_wants_images_with_labels(linear):
    with pytest.raises(TypeError, match=r"expected ImageData, got tuple: .*ads.from_tensors"):
        ads.tune(ads.MixedClassifier(linear, linear, 0.5), (torch.rand(2, 3, 8, 8), [0, 1]), clean_accuracy=0.8)


def test_tune_reaches_the_wanted_accuracy(linear, robust):
    pixels = torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, linear(pixels / 255).argmax(1))
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0)
    tuned = ads.tune(mixed, data, clean_accuracy=0.8)
    alpha = tuned.alpha.item()
    assert 0 < alpha < 1 and ads.evaluate(tuned, data).clean >= 0.8
    assert ads.evaluate(mixed.with_alpha(min(1, alpha + 0.01)), data).clean < 0.82
    assert tuned.standard is linear
    curve = clean_accuracy(linear, robust, data, standard_scale=2.0)
    for at in (0.0, 0.3, 0.77, 1.0):
        assert curve(at) == pytest.approx(ads.evaluate(mixed.with_alpha(at), data).clean)


# --- the shift of a learned alpha -------------------------------------------------------------------


def test_shifts_of_two_images_by_hand():
    """g says (3/4, 1/4) and h (1/4, 3/4): the first is right below alpha = 1/2, the second above it."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    mixture = ads.Mixture(logits, torch.zeros(2), logits, logits.flip(1))
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.25, 0.75), alpha_scale=2.0)
    curve = shift_accuracy(mixture, torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), mixed)
    assert curve.low[0] == -np.inf and curve.high[0] == pytest.approx(-2.0)
    assert curve.low[1] == pytest.approx(-6.0) and curve.high[1] == np.inf
    assert curve.span == pytest.approx((-6 - SATURATED, -2 + SATURATED))
    assert curve(-7) == 0.5 and curve(-4) == 1.0 and curve(0) == 0.5
    skewed = shift_accuracy(mixture, torch.zeros(2), torch.tensor([0, 1]), mixed.with_alpha_range(0.2, 0.8 - 0.2))
    assert skewed.high[0] == pytest.approx(math.log(3), abs=1e-6)


def test_an_end_outside_the_range_is_never_reached():
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    mixture = ads.Mixture(logits, torch.zeros(2), logits, logits.flip(1))
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.6, 0.9))
    curve = shift_accuracy(mixture, torch.zeros(2), torch.tensor([0, 1]), mixed)
    assert set(curve.steps()[1]) == {0.5} and curve.high[0] == curve.low[1] == -np.inf


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.3, 0.9)])
def test_the_predicted_accuracy_is_the_measured_one(linear, robust, data, scale, span):
    mixed = ads.MixedClassifier(linear, robust, Scored(), standard_scale=2.0, robust_scale=0.7, alpha_range=span)
    mixed = mixed.with_dial(scale, 0.3)
    curve = dial_accuracy(mixed, data, batch_size=128)
    settings, accuracy = curve.steps()
    assert accuracy.max() > accuracy.min() + 0.1
    for setting in (settings[0], *np.linspace(-8, 8, 9), settings[-1]):
        assert len(set(reading(curve, mixed, data, float(setting)))) == 1
    target = (accuracy.max() + accuracy[-1]) / 2
    tuned = ads.tune(mixed, data, clean_accuracy=target)
    shift = tuned.alpha_shift.item()
    assert ads.evaluate(tuned, data).clean == curve(shift) >= target
    assert accuracy[settings > shift + 1e-4].max() < target
    assert tuned.alpha is mixed.alpha and tuned.alpha_scale == mixed.alpha_scale
    assert torch.equal(tuned.alpha_range, mixed.alpha_range)


def test_the_ends_of_a_shift_are_those_of_the_range(linear, robust, data):
    mixed = ads.MixedClassifier(linear, robust, Scored(), alpha_range=(0.2, 0.8))
    first, last = dial_accuracy(mixed, data).span
    images = data.images[:50] / 255
    assert turned(mixed, first).mix(images).alpha.max() < 0.2 + 1e-5
    assert turned(mixed, last).mix(images).alpha.min() > 0.8 - 1e-5


def test_one_pass_serves(linear, robust, data):
    calls = []
    robust.register_forward_hook(lambda *_: calls.append(1))
    ads.tune(ads.MixedClassifier(linear, robust, Scored()), data, clean_accuracy=0.3)
    assert len(calls) == 1


def test_a_real_network_is_tuned_exactly(linear, data):
    """Its features come from the same pass as the logits."""
    torch.manual_seed(0)
    blocks = (nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    network = nn.Sequential(*blocks).eval().requires_grad_(False)
    taps = ("0", "2")
    mixer = ads.MixingNetwork.between(
        network, network, standard_taps=taps, robust_taps=taps, shape=(3, 8, 8), width=4
    ).requires_grad_(False)
    mixed = ads.MixedClassifier(ads.Hardmax(network), network, mixer).with_standard(ads.Hardmax(network))
    curve = dial_accuracy(mixed, data)
    tuned = ads.tune(mixed, data, clean_accuracy=curve.steps()[1].max())
    assert ads.evaluate(tuned, data).clean == curve(tuned.alpha_shift.item())
    mixer.train()
    with pytest.raises(ValueError, match="expected a model in eval mode"):
        ads.tune(mixed, data, clean_accuracy=0.5)


def test_what_has_no_dial_is_refused(linear, robust, data):
    class FromImages(nn.Module):
        def forward(self, images):
            return images.mean((1, 2, 3))

    mixed = ads.MixedClassifier(linear, robust, FromImages())
    with pytest.raises(TypeError, match=r"a number or a Mixer .*got the module FromImages: .*with_alpha\(0\.5\)"):
        ads.tune(mixed, data, clean_accuracy=0.5)
    with pytest.raises(ValueError, match=r"some width, got \(0\.7, 0\.7\), where no shift .*with_alpha_range\(0, 1\)"):
        ads.tune(mixed.with_alpha(Scored()).with_alpha_range(0.7, 0.7), data, clean_accuracy=0.5)
    with pytest.raises(TypeError, match="expected a mixture to tune, got LinearClassifier"):
        ads.tune(linear, data, clean_accuracy=0.5)


# --- a wanted robust accuracy -----------------------------------------------------------------------


@pytest.fixture
def opposed(linear):
    """g is right and at the mercy of an attacker, h is right wherever it is certain and hardly moves."""
    pixels = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    labels = linear(pixels / 255).argmax(1)
    robust = type(linear)(seed=0).eval()
    with torch.no_grad():
        robust.linear.weight.mul_(0.2)
    return ads.MixedClassifier(linear, robust, 0.5, standard_scale=3.0), from_tensors(pixels, labels)


@pytest.mark.parametrize("learned", [False, True])
def test_tune_finds_the_smallest_robust_setting(opposed, learned, monkeypatch):
    mixed, data = opposed
    mixed = mixed.with_alpha(Scored()) if learned else mixed
    attack, asked = PGD(THREAT, steps=5), []
    curve = dial_accuracy(mixed, data)
    settings, _ = curve.steps()
    robust = [ads.evaluate(turned(mixed, setting), data, attack).robust for setting in settings.tolist()]
    target = (robust[0] + robust[-1]) / 2
    assert robust[-1] > robust[0]

    def counted(model, images, labels):
        asked.append(1)
        return attack(model, images, labels)

    tuned = ads.tune(mixed, data, robust_accuracy=target, attack=counted)
    assert len(asked) <= EVALUATIONS
    reached = ads.evaluate(tuned, data, attack).robust
    setting = tuned.alpha_shift.item() if learned else tuned.alpha.item()
    number = int(np.abs(settings - setting).argmin())
    assert reached == robust[number] >= target > robust[max(0, number - 1 - len(settings) // 2 ** (EVALUATIONS - 1))]


def test_the_fast_attack_is_the_default(opposed):
    mixed, data = opposed
    few = data.take(slice(0, 12))
    best = ads.evaluate(mixed.with_alpha(1.0), few, ads.FastAttack(THREAT), with_alarms=False).robust
    tuned = ads.tune(mixed, few, robust_accuracy=best, threat=THREAT)
    assert ads.evaluate(tuned, few, ads.FastAttack(THREAT), with_alarms=False).robust >= best


def test_a_robust_accuracy_out_of_reach_is_named(opposed):
    mixed, data = opposed
    best = ads.evaluate(mixed.with_alpha(1.0), data, PGD(THREAT, steps=5)).robust
    assert best < 1
    with pytest.raises(ValueError, match=rf"got 1: at its most robust end it has {best:.4g} on 60 images; ask for"):
        ads.tune(mixed, data, robust_accuracy=1.0, attack=PGD(THREAT, steps=5))


@pytest.mark.parametrize(
    ("wishes", "got"),
    [
        ({}, "none of them"),
        ({"clean_accuracy": 0.9, "robust_accuracy": 0.4}, "clean_accuracy and robust_accuracy"),
        ({"robust_accuracy": 0.4}, "robust_accuracy: "),
        ({"clean_accuracy": 0.9, "threat": THREAT}, "clean_accuracy and threat"),
        ({"robust_accuracy": 0.4, "threat": THREAT, "attack": PGD(THREAT)}, "threat and attack"),
    ],
)
def test_one_target_at_a_time(opposed, wishes, got):
    with pytest.raises(ValueError, match=rf"expected a clean_accuracy, or a robust_accuracy .*, got .*{got}"):
        ads.tune(*opposed, **wishes)


def test_percent_is_refused(opposed):
    with pytest.raises(ValueError, match=r"expected a robust accuracy in \(0, 1\], such as 0\.9, got 42"):
        ads.tune(*opposed, robust_accuracy=42, threat=THREAT)
