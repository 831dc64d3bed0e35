"""The setting of a mixture for a requested clean or robust accuracy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.tuning.curves import accuracy_curve
from adaptive_smoothing.tuning.tune import EVALUATIONS, RANGE_FACTORS

THREAT = ads.Linf(8 / 255)


def test_images_need_labels(linear):
    with pytest.raises(TypeError, match=r"expected ImageData, got tuple: .*ads.from_tensors"):
        ads.tune(ads.MixedClassifier(linear, linear, 0.5), (torch.rand(2, 3, 8, 8), [0, 1]), clean_accuracy=0.8)


def test_the_requested_clean_accuracy_is_reached(linear, robust, labelled_by_g):
    data = labelled_by_g
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0)
    tuned = ads.tune(mixed, data, clean_accuracy=0.8)
    alpha = tuned.alpha.item()
    assert 0 < alpha < 1 and ads.evaluate(tuned, data).clean >= 0.8
    assert ads.evaluate(mixed.with_alpha(min(1, alpha + 0.01)), data).clean < 0.82
    assert tuned.standard is linear


def test_the_clean_accuracy_is_logged(linear, robust, labelled_by_g):
    data, lines = labelled_by_g, []
    mixed = ads.MixedClassifier(linear, robust, 0.5, standard_scale=2.0)
    tuned = ads.tune(mixed, data, clean_accuracy=0.8, log=lines.append)
    found, end = (100 * ads.evaluate(model, data).clean for model in (tuned, robust))
    (line,) = lines
    assert f"on 300 images by alpha: {found:.2f} % at" in line
    assert line.endswith(f"(100.00 % at 0, {end:.2f} % at 1)")
    with pytest.warns(UserWarning, match=rf"of 1 % was requested, but the most robust setting already has {end:.2f} %"):
        ads.tune(mixed, data, clean_accuracy=0.01)


def test_a_base_classifier_that_returns_probabilities_is_refused(linear, robust, labelled_by_g):
    softmax = nn.Sequential(linear, nn.Softmax(1)).eval()
    for g, h in ((softmax, robust), (linear, softmax)):
        with pytest.raises(ValueError, match=r"expected logits.* got .*probabilities"):
            ads.tune(ads.MixedClassifier(g, h, 0.5), labelled_by_g, clean_accuracy=0.8)


def test_an_alpha_for_each_image_is_replaced(linear, robust, labelled_by_g):
    alphas = torch.rand(len(labelled_by_g))
    found = ads.tune(ads.MixedClassifier(linear, robust, alphas), labelled_by_g, clean_accuracy=0.8)
    assert found.alpha.dim() == 0 and ads.evaluate(found, labelled_by_g).clean >= 0.8


class Table(nn.Module):
    """A table of probabilities. The first pixel is the number of the image, the second is 1 if it is attacked."""

    def __init__(self, *leads):
        """Args are the leads of the correct class over the other one for clean and for attacked images."""
        super().__init__()
        first = (1 + torch.tensor(leads)) / 2
        self.logits = torch.stack([first, 1 - first], dim=2).clamp_min(1e-30).log()
        self.logits[:, 1::2] = self.logits[:, 1::2].flip(2)
        self.training = False

    def forward(self, images):
        return self.logits[images[:, 0, 0, 1].round().long(), (255 * images[:, 0, 0, 0]).round().long()]


def table_data():
    """Forty images of class 0 and class 1 in turn, with their numbers in the first pixel."""
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(40)
    return from_tensors(images, torch.arange(40) % 2)


def table_attack(model, images, labels):
    attacked = images.clone()
    attacked[:, 0, 0, 1] = 1
    return attacked


class ZeroScore(Mixer):
    def forward(self, base_outputs):
        return MixerOutput(base_outputs.h.new_zeros(len(base_outputs.h)), base_outputs.h)


@pytest.fixture
def known():
    """g is correct until it is attacked. h is incorrect on twenty images by a lead of (i + 1/2) / 20, and correct under
    attack on the others by a lead of (i + 1/4) / 20. A lead decides if it is above (1 - alpha) / alpha.
    """
    certain, half, quarter = [1.0] * 40, [(i + 0.5) / 20 for i in range(20)], [(i + 0.25) / 20 for i in range(20)]
    g = Table(certain, [-lead for lead in certain])
    h = Table([-lead for lead in half] + [0.8] * 20, [-1.0] * 20 + quarter)
    return ads.MixedClassifier(g, h, 0.5), table_data()


def test_the_most_accurate_setting_with_a_robust_accuracy(known):
    """Ten leads under attack are 10.25 / 20 and more, which lies between the clean ones of 9.5 and 10.5 / 20."""
    mixed, data = known
    tuned = ads.tune(mixed, data, robust_accuracy=0.25, attack=table_attack)
    assert tuned.alpha.item() == pytest.approx((1 / (1 + 9.5 / 20) + 1 / (1 + 10.5 / 20)) / 2)
    measured = ads.evaluate(tuned, data, table_attack)
    assert measured.robust == 0.25 and measured.clean == 0.75


def test_the_most_accurate_shift_with_a_robust_accuracy(known):
    mixed, data = known
    tuned = ads.tune(mixed.with_alpha(ZeroScore()), data, robust_accuracy=0.25, attack=table_attack)
    assert tuned.alpha_shift.item() == pytest.approx(-(math.log(9.5 / 20) + math.log(10.5 / 20)) / 2)
    measured = ads.evaluate(tuned, data, table_attack)
    assert measured.robust == 0.25 and measured.clean == 0.75


def test_every_robust_accuracy_up_to_the_best_is_reached(known):
    mixed, data = known
    reached = [
        ads.evaluate(ads.tune(mixed, data, robust_accuracy=target, attack=table_attack), data, table_attack).robust
        for target in (0.05, 0.2, 0.4, 0.5)
    ]
    assert reached == pytest.approx([0.05, 0.2, 0.4, 0.5])
    with pytest.raises(ValueError, match=r"got 0\.51: its most robust setting has 0\.5; ask for at most"):
        ads.tune(mixed, data, robust_accuracy=0.51, attack=table_attack)


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
    """The robust accuracy depends on known numbers, which the search must find at the same clean accuracy."""
    mixed, data = known

    def best_at(wanted):
        def evaluate(model, images, attack, **options):
            asked.append(model)
            far = sum(abs(math.log2(getattr(model, name).item() / value)) for name, value in wanted.items())
            return SimpleNamespace(robust=1 - far / 10)

        monkeypatch.setattr("adaptive_smoothing.tuning.tune.evaluate", evaluate)

    asked, lines = [], []
    best_at({"standard_scale": 2.0, "robust_scale": 0.5})
    tuned = ads.tune(mixed, data, clean_accuracy=0.75, threat=THREAT, log=lines.append)
    assert (tuned.standard_scale.item(), tuned.robust_scale.item()) == (2.0, 0.5) and len(asked) == len(lines) == 7
    (best,) = [line for line in lines if "accuracy 100.00 % on 40 images with " in line]
    assert best.endswith("standard_scale=2, robust_scale=0.5)")
    clean = {ads.evaluate(model, data).clean for model in asked}
    assert clean == {0.75}

    asked.clear()  # further in the direction that improves
    best_at({"standard_scale": 16.0, "robust_scale": 1.0})
    assert ads.tune(mixed, data, clean_accuracy=0.75, threat=THREAT).standard_scale.item() == 16.0
    assert [model.standard_scale.item() for model in asked] == [1.0, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0, 16.0, 16.0]

    asked.clear()
    best_at({"alpha_scale": 2.0})
    tuned = ads.tune(mixed.with_alpha(ZeroScore()), data, clean_accuracy=0.75, threat=THREAT, attacked=10)
    assert tuned.alpha_scale.item() == 2.0 and tuned.alpha_range.tolist() == [0, 1] and len(asked) == 10
    alpha = ads.tune(mixed, data, clean_accuracy=0.75).alpha.item()
    assert [model.alpha_range.tolist() for model in asked[-2:]] == [
        pytest.approx([(1 - factor) * alpha, (1 - factor) * alpha + factor]) for factor in RANGE_FACTORS
    ]

    asked.clear()  # the range of training becomes narrower
    learned = mixed.with_alpha(ZeroScore())
    ads.tune(learned.with_alpha_range(0.1, 1), data, clean_accuracy=0.75, threat=THREAT, attacked=10)
    for model, factor in zip(asked[-2:], RANGE_FACTORS, strict=True):
        low, high = model.alpha_range.tolist()
        assert high - low == pytest.approx(0.9 * factor) and low <= alpha <= high and low >= 0.1 and high <= 1

    asked.clear()  # a range without width is a fixed alpha
    best_at({"standard_scale": 2.0, "robust_scale": 0.5})
    shared = ads.tune(learned.with_alpha_range(0.5, 0.5), data, clean_accuracy=0.75, threat=THREAT)
    assert (shared.standard_scale.item(), shared.robust_scale.item()) == (2.0, 0.5) and len(asked) == 7
    assert shared.alpha_range[0] == shared.alpha_range[1] and ads.evaluate(shared, data).clean == 0.75


class ConfidenceScore(Mixer):
    """A score that increases with the confidence of h."""

    def forward(self, base_outputs):
        return MixerOutput(100 * (base_outputs.h.softmax(1).amax(1) - 0.975), base_outputs.h)


def test_a_learned_alpha_is_searched_where_no_fixed_alpha_reaches_the_target():
    half = [1.0] * 20
    g = Table(half + [-1.0] * 20, [-1.0] * 40)
    h = Table([-0.9] * 20 + half, [-1.0] * 20 + half)
    data, mixed = table_data(), ads.MixedClassifier(g, h, ConfidenceScore(), alpha_scale=4.0)
    tuned = ads.tune(mixed, data, clean_accuracy=1.0, attack=table_attack)
    assert ads.evaluate(tuned, data, table_attack).robust == 0.5 and ads.evaluate(tuned, data).clean == 1.0


@pytest.mark.filterwarnings("ignore:.*made the correct class more likely")  # h is correct under attack only
def test_settings_with_less_of_both_accuracies_are_not_chosen():
    """Below some alpha both accuracies are lower."""
    g, h = Table([1.0] * 30 + [-0.2] * 10, [1.0] * 40), Table([-0.5] * 10 + [0.8] * 30, [1.0] * 40)
    data = table_data()
    tuned = ads.tune(ads.MixedClassifier(g, h, 0.5), data, robust_accuracy=0.5, attack=table_attack)
    assert ads.evaluate(tuned, data, table_attack).clean == 1.0


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ({}, "none of them"),
        ({"clean_accuracy": 0.9, "robust_accuracy": 0.4}, "clean_accuracy and robust_accuracy"),
        ({"robust_accuracy": 0.4}, "robust_accuracy: "),
        ({"clean_accuracy": 0.9, "threat": THREAT, "attack": PGD(THREAT)}, "threat and attack"),
        ({"robust_accuracy": 0.4, "threat": THREAT, "attack": PGD(THREAT)}, "threat and attack"),
    ],
)
def test_one_target_at_a_time(known, arguments, got):
    with pytest.raises(ValueError, match=rf"expected a clean_accuracy, or a robust_accuracy .*, got .*{got}"):
        ads.tune(*known, **arguments)


def test_percentages_are_rejected(known):
    with pytest.raises(ValueError, match=r"expected a robust accuracy in \(0, 1\], such as 0\.9, got 42"):
        ads.tune(*known, robust_accuracy=42, threat=THREAT)
