import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve, correct_interval
from adaptive_smoothing.tuning.curves import (
    SATURATED,
    accuracy_curve,
    at_setting,
    clean_accuracy,
    current_setting,
    shared_alpha_curve,
    shift_curve,
)
from adaptive_smoothing.tuning.tune import EVALUATIONS, FREEDOMS

THREAT = ads.Linf(8 / 255)


class Scored(Mixer):
    """A score that is a fixed linear map of both logits, and another h than h."""

    def forward(self, base_outputs):
        weights = torch.randn(base_outputs.g.shape[1], generator=torch.Generator().manual_seed(5))
        return MixerOutput((base_outputs.h - base_outputs.g) @ weights, 1.5 * base_outputs.h)


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
    return curve(at_setting(mixed, setting).alpha_shift.item()), ads.evaluate(at_setting(mixed, setting), data).clean


def test_interval_agrees_with_the_mixture_at_every_alpha():
    g, h, labels = probabilities(400), probabilities(400, seed=1), torch.arange(400) % 5
    low, high = correct_interval(g, h, labels)
    for alpha in np.linspace(0, 1, 41):
        right = ((1 - alpha) * g + alpha * h).argmax(1) == labels
        assert torch.equal(right, (low < alpha) & (alpha < high))


def test_a_nan_is_right_at_no_alpha():
    known, nan = probabilities(5), torch.full((5, 5), torch.nan, dtype=torch.double)
    for g, h in ((known, nan), (nan, known), (nan, nan)):
        curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, known.argmax(1))))
        assert not curve.steps()[1].any() and not any(map(curve, np.linspace(0, 1, 11)))


def test_steps_are_exact_and_complete():
    g, h, labels = probabilities(60), probabilities(60, seed=1), torch.arange(60) % 5
    curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, labels)))
    alphas, accuracy = curve.steps()
    assert alphas[0] == 0 and alphas[-1] == 1 and (np.diff(alphas) >= 0).all()
    assert np.allclose([curve(alpha) for alpha in alphas], accuracy)
    dense = np.linspace(0, 1, 5001)
    assert max(map(curve, dense)) <= accuracy.max() + 1e-12


def test_steps_keep_to_what_float32_can_hit():
    """A g that is certain and an h that is nearly so tie close to 1/2, in ever narrower stretches."""
    curve = CleanAccuracyCurve(np.full(3, -np.inf), 0.5 + np.array([1e-9, 2e-9, 0.1]))
    assert curve.largest(1.0) == pytest.approx(0.25) and curve.largest(0.6) == pytest.approx(0.25)
    assert curve.largest(0.3) == pytest.approx(0.55)


def test_steps_of_a_shift_go_beyond_all_numbers():
    curve = CleanAccuracyCurve(np.array([-np.inf, 3.0, np.inf]), np.array([-2.0, np.inf, -np.inf]), (-10, 10), "shift")
    settings, accuracy = curve.steps()
    assert settings.tolist() == [-10, -6, 0.5, 6.5, 10]
    assert np.allclose(accuracy, np.array([1, 1, 0, 1, 1]) / 3)
    assert curve.largest(0.3) == 10
    with pytest.raises(ValueError, match=r"best on 3 images is 0\.333, at shift -10"):
        curve.largest(0.5)


def test_largest_is_the_last_that_reaches_the_target():
    curve = CleanAccuracyCurve(low=np.array([-np.inf, -np.inf, 0.2, 0.6]), high=np.array([np.inf, 0.5, np.inf, np.inf]))
    assert curve(0.1) == 0.5 and curve(0.3) == 0.75 and curve(0.55) == 0.5 and curve(0.9) == 0.75
    assert curve.largest(0.75) == 1.0
    assert curve.largest(0.5) == 1.0


def test_what_is_offered_can_be_had():
    curve = CleanAccuracyCurve(np.array([0.5, -np.inf, -np.inf]), np.array([np.inf, 0.4, np.inf]))
    with pytest.raises(ValueError, match=r"on 3 images is 0\.666, at alpha .*; ask for at most that"):
        curve.largest(0.9)
    curve.largest(0.666)


def test_curves_are_kept_with_their_dial(tmp_path):
    curve = CleanAccuracyCurve(np.array([-np.inf, 1.0]), np.array([2.0, np.inf]), (-3.0, 4.0), "shift")
    curve.save(tmp_path / "curve.npz")
    loaded = CleanAccuracyCurve.load(tmp_path / "curve.npz")
    assert loaded.span == (-3.0, 4.0) and loaded.dial == "shift"
    assert np.array_equal(loaded.low, curve.low) and np.array_equal(loaded.high, curve.high)
    np.savez(tmp_path / "early.npz", low=curve.low, high=curve.high)
    early = CleanAccuracyCurve.load(tmp_path / "early.npz")
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


def test_a_clean_accuracy_is_met_within_a_twentieth_of_a_point():
    """On 5,000 images, wherever it lies between those of the two classifiers."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (5000,), generator=rng)
    own = 4 * torch.nn.functional.one_hot(labels, 10)
    g, h = ((share * own + 2 * torch.randn(5000, 10, generator=rng)).softmax(1).double() for share in (1.5, 1.0))
    curve = CleanAccuracyCurve(*(end.numpy() for end in correct_interval(g, h, labels)))
    assert curve(0) - curve(1) > 0.1
    for target in np.linspace(curve(1), curve(0), 40):
        assert 0 <= curve(curve.largest(target)) - target < 5e-4


def test_tune_says_what_a_clean_accuracy_costs(linear, robust):
    pixels = torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data, said = from_tensors(pixels, linear(pixels / 255).argmax(1)), []
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0)
    tuned = ads.tune(mixed, data, clean_accuracy=0.8, say=said.append)
    found, end = (100 * ads.evaluate(model, data).clean for model in (tuned, robust))
    (line,) = said
    assert f"on 300 images by alpha: {found:.2f} % at" in line and line.endswith(
        f"of 100.00 % at 0 to {end:.2f} % at 1"
    )
    with pytest.warns(UserWarning, match=rf"1 % clean accuracy was asked for, and there are {end:.2f} % even"):
        ads.tune(mixed, data, clean_accuracy=0.01)


# --- the shift of a learned alpha -------------------------------------------------------------------


def test_shifts_of_two_images_by_hand():
    """g says (3/4, 1/4) and h (1/4, 3/4): the first is right below alpha = 1/2, the second above it."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.25, 0.75), alpha_scale=2.0)
    curve = shift_curve(base_outputs, MixerOutput(torch.tensor([1.0, 3.0]), h), torch.tensor([0, 1]), mixed)
    assert curve.low[0] == -np.inf and curve.high[0] == pytest.approx(-2.0)
    assert curve.low[1] == pytest.approx(-6.0) and curve.high[1] == np.inf
    assert curve.span == pytest.approx((-6 - SATURATED, -2 + SATURATED))
    assert curve(-7) == 0.5 and curve(-4) == 1.0 and curve(0) == 0.5
    wider = mixed.with_alpha_range(0.2, 0.8 - 0.2)
    skewed = shift_curve(base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]), wider)
    assert skewed.high[0] == pytest.approx(math.log(3), abs=1e-6)


def test_an_end_outside_the_range_is_never_reached():
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    base_outputs, h = BaseOutputs(logits, logits), logits.flip(1)
    mixed = ads.MixedClassifier(nn.Identity(), nn.Identity(), Scored(), alpha_range=(0.6, 0.9))
    curve = shift_curve(base_outputs, MixerOutput(torch.zeros(2), h), torch.tensor([0, 1]), mixed)
    assert set(curve.steps()[1]) == {0.5} and curve.high[0] == curve.low[1] == -np.inf


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.3, 0.9)])
def test_the_predicted_accuracy_is_the_measured_one(linear, robust, data, scale, span):
    mixed = ads.MixedClassifier(linear, robust, Scored(), standard_scale=2.0, robust_scale=0.7, alpha_range=span)
    mixed = mixed.with_sigmoid(scale, 0.3)
    curve = accuracy_curve(mixed, data, batch_size=128)
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
    first, last = accuracy_curve(mixed, data).span
    images = data.images[:50] / 255
    assert at_setting(mixed, first).mix(images).alpha.max() < 0.2 + 1e-5
    assert at_setting(mixed, last).mix(images).alpha.min() > 0.8 - 1e-5


def test_one_pass_serves(linear, robust, data):
    calls = []
    robust.register_forward_hook(lambda *_: calls.append(1))
    ads.tune(ads.MixedClassifier(linear, robust, Scored()), data, clean_accuracy=0.5)
    assert len(calls) == 1


def test_a_real_network_is_tuned_exactly(linear, data):
    """Its features come from the same pass as the logits."""
    torch.manual_seed(0)
    g, h = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.Flatten(), nn.Linear(32, 4)).eval()
        for _ in range(2)
    )
    mixer = ads.MixingNetwork.between(g, h, standard_taps=("0", "2"), robust_taps=("0", "2"), shape=(3, 8, 8), width=4)
    mixed = ads.MixedClassifier(ads.Hardmax(g), h, mixer, alpha_scale=3.0, alpha_range=(0.4, 1.0))
    curve = accuracy_curve(mixed, data)
    _, accuracy = curve.steps()
    assert len(set(accuracy)) > 3
    tuned = ads.tune(mixed, data, clean_accuracy=accuracy.max())
    assert ads.evaluate(tuned, data).clean == curve(tuned.alpha_shift.item()) == accuracy.max()
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
    with pytest.raises(TypeError, match="expected a mixture to tune, got LinearClassifier"):
        ads.tune(linear, data, clean_accuracy=0.5)


def test_a_range_without_width_is_one_alpha_for_all(linear, robust, data):
    """The mixer still says what stands for h."""
    mixed = ads.MixedClassifier(linear, robust, Scored(), alpha_range=(0.7, 0.7))
    assert current_setting(mixed) == pytest.approx(0.7) and accuracy_curve(mixed, data).dial == "alpha"
    tuned = ads.tune(mixed, data, clean_accuracy=0.5)
    low, high = tuned.alpha_range.tolist()
    assert low == high == current_setting(tuned) and torch.equal(tuned.mix(data.floats()).h, mixed.mix(data.floats()).h)
    assert ads.evaluate(tuned, data).clean == pytest.approx(accuracy_curve(mixed, data)(low), abs=1e-6) and low != 0.7
    base_outputs = mixed.base_outputs(data.floats())
    with pytest.raises(ValueError, match=r"some width, got \(0\.7, 0\.7\), where no shift .*with_alpha_range\(0, 1\)"):
        shift_curve(base_outputs, mixed.alpha(base_outputs), data.labels, mixed)


def test_the_dial_of_a_mixture_with_transforms(linear, robust, data):
    """Of the h that the mixer makes, and of a g that is certain."""
    sharper = ads.Nonlinear(robust, scale=2.0, power=2.0, shift=-0.25)
    for g in (linear, ads.Hardmax(linear)):
        mixed = ads.MixedClassifier(g, sharper, Scored(), alpha_range=(0.4, 0.95))
        curve = accuracy_curve(mixed, data)
        for setting in (-2.0, 0.1, 1.7):
            predicted, measured = reading(curve, mixed, data, setting)
            assert predicted == pytest.approx(measured, abs=1e-6)
        shared = shared_alpha_curve(mixed, data)
        at = mixed.with_alpha_range(0.7, 0.7)
        assert shared(at.alpha_range[0].item()) == pytest.approx(ads.evaluate(at, data).clean, abs=1e-6)


# --- a wanted robust accuracy -----------------------------------------------------------------------


class Table(nn.Module):
    """Probabilities by heart: the first pixel is the number of the image, the second says whether it is attacked."""

    def __init__(self, *leads):
        """The lead of class 0 over class 1, of clean and of attacked images."""
        super().__init__()
        first = (1 + torch.tensor(leads)) / 2
        self.logits = torch.stack([first, 1 - first, torch.zeros_like(first)], dim=2).clamp_min(1e-30).log()
        self.training = False

    def forward(self, images):
        return self.logits[images[:, 0, 0, 1].round().long(), (255 * images[:, 0, 0, 0]).round().long()]


def by_heart(model, images, labels):
    attacked = images.clone()
    attacked[:, 0, 0, 1] = 1
    return attacked


class Level(Mixer):
    def forward(self, base_outputs):
        return MixerOutput(base_outputs.h.new_zeros(len(base_outputs.h)), base_outputs.h)


@pytest.fixture
def known():
    """All images are of class 0. g knows, until it is attacked. h is wrong on twenty by a lead of (i + 1/2) / 20, and
    right under attack on the others by a lead of (i + 1/4) / 20. A lead decides if it is above (1 - alpha) / alpha.
    """
    certain, half, quarter = [1.0] * 40, [(i + 0.5) / 20 for i in range(20)], [(i + 0.25) / 20 for i in range(20)]
    g = Table(certain, [-lead for lead in certain])
    h = Table([-lead for lead in half] + [0.8] * 20, [-1.0] * 20 + quarter)
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(40)
    return ads.MixedClassifier(g, h, 0.5), from_tensors(images, torch.zeros(40, dtype=torch.long))


def test_tune_finds_the_most_accurate_setting_that_is_robust_enough(known):
    """Ten leads under attack are 10.25 / 20 and more, which lies between the clean ones of 9.5 and 10.5 / 20."""
    mixed, data = known
    tuned = ads.tune(mixed, data, robust_accuracy=0.25, attack=by_heart)
    assert tuned.alpha.item() == pytest.approx((1 / (1 + 9.5 / 20) + 1 / (1 + 10.5 / 20)) / 2)
    measured = ads.evaluate(tuned, data, by_heart)
    assert measured.robust == 0.25 and measured.clean == 0.75


def test_a_shift_serves_as_well_as_an_alpha(known):
    mixed, data = known
    tuned = ads.tune(mixed.with_alpha(Level()), data, robust_accuracy=0.25, attack=by_heart)
    assert tuned.alpha_shift.item() == pytest.approx(-(math.log(9.5 / 20) + math.log(10.5 / 20)) / 2)
    measured = ads.evaluate(tuned, data, by_heart)
    assert measured.robust == 0.25 and measured.clean == 0.75


def test_every_robust_accuracy_up_to_the_best_is_reached(known):
    mixed, data = known
    reached = [
        ads.evaluate(ads.tune(mixed, data, robust_accuracy=target, attack=by_heart), data, by_heart).robust
        for target in (0.05, 0.2, 0.4, 0.5)
    ]
    assert reached == pytest.approx([0.05, 0.2, 0.4, 0.5])
    with pytest.raises(ValueError, match=r"got 0\.51: at its most robust end it has 0\.5; ask for at most"):
        ads.tune(mixed, data, robust_accuracy=0.51, attack=by_heart)


def test_seven_fast_attacks_without_alarms_and_audit(linear, robust, data, monkeypatch):
    asked = []

    def evaluate(model, images, attack, **options):
        assert attack.name == "fast" and attack.threat == THREAT and not attack.audit
        assert options == {"options": EvaluationOptions(alarms=False)}
        asked.append(model.alpha.item())
        return SimpleNamespace(robust=asked[-1])

    monkeypatch.setattr("adaptive_smoothing.tuning.tune.evaluate", evaluate)
    mixed = ads.MixedClassifier(linear, robust, 0.5)
    settings, _ = accuracy_curve(mixed, data).steps()
    tuned = ads.tune(mixed, data, robust_accuracy=0.6, threat=THREAT)
    assert len(settings) > 2**EVALUATIONS and len(asked) == EVALUATIONS and asked[0] == 1.0
    number = int(np.abs(settings - tuned.alpha.item()).argmin())
    assert settings[number] >= 0.6 > settings[number - 1 - len(settings) // 2 ** (EVALUATIONS - 1)]


def test_the_most_robust_mixture_with_a_clean_accuracy(known, monkeypatch):
    """An attacker that prefers some numbers: they are found, one after the other, at the same clean accuracy."""
    mixed, data = known

    def prefers(wanted):
        def evaluate(model, images, attack, **options):
            asked.append(model)
            far = sum(abs(math.log2(getattr(model, name).item() / value)) for name, value in wanted.items())
            return SimpleNamespace(robust=1 - far / 10)

        monkeypatch.setattr("adaptive_smoothing.tuning.tune.evaluate", evaluate)

    asked, said = [], []
    prefers({"standard_scale": 2.0, "robust_scale": 0.5})
    tuned = ads.tune(mixed, data, clean_accuracy=0.75, threat=THREAT, say=said.append)
    assert (tuned.standard_scale.item(), tuned.robust_scale.item()) == (2.0, 0.5) and len(asked) == len(said) == 7
    assert sum("100.00 % of 40 images stand at alpha=" in line for line in said) == 1
    clean = {ads.evaluate(model, data).clean for model in asked}
    assert clean == {0.75}

    asked.clear()  # further to the side that gains, for as long as it does
    prefers({"standard_scale": 16.0, "robust_scale": 1.0})
    assert ads.tune(mixed, data, clean_accuracy=0.75, threat=THREAT).standard_scale.item() == 16.0
    assert [model.standard_scale.item() for model in asked] == [1.0, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0, 16.0, 16.0]

    asked.clear()
    prefers({"alpha_scale": 2.0})
    tuned = ads.tune(mixed.with_alpha(Level()), data, clean_accuracy=0.75, threat=THREAT, attacked=10)
    assert tuned.alpha_scale.item() == 2.0 and tuned.alpha_range.tolist() == [0, 1] and len(asked) == 10
    alpha = ads.tune(mixed, data, clean_accuracy=0.75).alpha.item()
    assert [model.alpha_range.tolist() for model in asked[-2:]] == [
        pytest.approx([(1 - freedom) * alpha, (1 - freedom) * alpha + freedom]) for freedom in FREEDOMS
    ]

    asked.clear()  # a range that the network learned with is drawn together, not given up
    ads.tune(mixed.with_alpha(Level()).with_alpha_range(0.1, 1), data, clean_accuracy=0.75, threat=THREAT, attacked=10)
    for model, freedom in zip(asked[-2:], FREEDOMS, strict=True):
        low, high = model.alpha_range.tolist()
        assert high - low == pytest.approx(0.9 * freedom) and low <= alpha <= high and low >= 0.1 and high <= 1

    asked.clear()  # one alpha for all images, whatever learned it
    prefers({"standard_scale": 2.0, "robust_scale": 0.5})
    shared = ads.tune(mixed.with_alpha(Level()).with_alpha_range(0.5, 0.5), data, clean_accuracy=0.75, threat=THREAT)
    assert (shared.standard_scale.item(), shared.robust_scale.item()) == (2.0, 0.5) and len(asked) == 7
    assert shared.alpha_range[0] == shared.alpha_range[1] and ads.evaluate(shared, data).clean == 0.75


class Sure(Mixer):
    """Trusts h where it is sure."""

    def forward(self, base_outputs):
        return MixerOutput(100 * (base_outputs.h.softmax(1).amax(1) - 0.975), base_outputs.h)


def test_a_learned_alpha_that_no_fixed_one_can_match_is_searched_for_all_the_same():
    half = [1.0] * 20
    g = Table(half + [-1.0] * 20, [-1.0] * 40)
    h = Table([-0.9] * 20 + half, [-1.0] * 20 + half)
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(40)
    data = from_tensors(images, torch.zeros(40, dtype=torch.long))
    mixed = ads.MixedClassifier(g, h, Sure(), alpha_scale=4.0)
    tuned = ads.tune(mixed, data, clean_accuracy=1.0, attack=by_heart)
    assert ads.evaluate(tuned, data, by_heart).robust == 0.5 and ads.evaluate(tuned, data).clean == 1.0


def test_clean_accuracy_is_not_given_away_for_nothing():
    """Below some alpha both accuracies are worse."""
    right, images = [1.0] * 30, torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(40)
    g, h = Table(right + [-0.2] * 10, [1.0] * 40), Table([-0.5] * 10 + [0.8] * 30, [1.0] * 40)
    data = from_tensors(images, torch.zeros(40, dtype=torch.long))
    tuned = ads.tune(ads.MixedClassifier(g, h, 0.5), data, robust_accuracy=0.5, attack=by_heart)
    assert ads.evaluate(tuned, data, by_heart).clean == 1.0


@pytest.mark.parametrize(
    ("wishes", "got"),
    [
        ({}, "none of them"),
        ({"clean_accuracy": 0.9, "robust_accuracy": 0.4}, "clean_accuracy and robust_accuracy"),
        ({"robust_accuracy": 0.4}, "robust_accuracy: "),
        ({"clean_accuracy": 0.9, "threat": THREAT, "attack": PGD(THREAT)}, "threat and attack"),
        ({"robust_accuracy": 0.4, "threat": THREAT, "attack": PGD(THREAT)}, "threat and attack"),
    ],
)
def test_one_target_at_a_time(known, wishes, got):
    with pytest.raises(ValueError, match=rf"expected a clean_accuracy, or a robust_accuracy .*, got .*{got}"):
        ads.tune(*known, **wishes)


def test_percent_is_refused(known):
    with pytest.raises(ValueError, match=r"expected a robust accuracy in \(0, 1\], such as 0\.9, got 42"):
        ads.tune(*known, robust_accuracy=42, threat=THREAT)
