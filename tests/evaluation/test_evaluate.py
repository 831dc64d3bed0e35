"""`evaluate` with functions as attacks, and its arguments."""

import re

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.threat import Linf


@pytest.fixture
def fifty(linear):
    """Fifty images, of which the model misclassifies ten."""
    pixels = torch.randint(0, 256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = linear(pixels / 255).argmax(1)
    labels[:10] = (labels[:10] + 1) % 4
    return ads.from_tensors(pixels, labels)


def test_clean_accuracy_and_rows(linear, fifty):
    result = ads.evaluate(linear, fifty, options=EvaluationOptions(batch_size=7))
    assert result.clean == pytest.approx(0.8) and result.index.tolist() == list(range(50))
    assert result.clean_interval[0] < 0.8 < result.clean_interval[1]
    with pytest.raises(ValueError, match="expected an evaluation under an attack"):
        result.robust  # noqa: B018


def test_robust_accuracy_decreases_with_the_radius_to_zero(linear, fifty):
    robust = [ads.evaluate(linear, fifty, PGD(Linf(eps), steps=10)).robust for eps in (0.0, 0.01, 0.03, 1.0)]
    assert robust[0] == pytest.approx(0.8) and robust[-1] == 0
    assert sorted(robust, reverse=True) == robust and robust[1] > robust[2]


def test_misclassified_images_are_not_attacked(linear, fifty):
    seen = []

    def attack(model, images, labels):
        seen.extend(labels.tolist())
        return images

    result = ads.evaluate(linear, fifty, attack)
    assert seen == fifty.labels[10:].tolist() and result.robust == pytest.approx(0.8)


def test_the_batch_size_does_not_matter(linear, fifty):
    attack = PGD(Linf(0.02), steps=5, stop_when_fooled=True)
    one, many = (ads.evaluate(linear, fifty, attack, options=EvaluationOptions(batch_size=k)) for k in (1, 50))
    assert torch.equal(one.attacked_predictions, many.attacked_predictions) and 0 < one.robust < one.clean


def test_pgd_may_have_a_radius_for_each_image(linear, fifty):
    radii = torch.where(torch.arange(50) % 2 == 0, 0.0, 1.0)
    result = ads.evaluate(linear, fifty, PGD(Linf(radii), steps=5), options=EvaluationOptions(batch_size=7))
    assert torch.equal(result.robust_correct, result.clean_correct & (radii == 0))


def test_nan_logits_are_an_error(linear, fifty):
    class Poisoned(nn.Module):
        def forward(self, images):
            return linear(images) * torch.where(images.flatten(1).mean(1) > 0.5, torch.nan, 1.0)[:, None]

    with pytest.raises(ValueError, match="NaN"):
        ads.evaluate(Poisoned().eval(), fifty)


def test_a_function_reports_the_same_progress_as_a_cascade(linear, fifty):
    reports = []
    attack = PGD(Linf(0.02), steps=5)
    result = ads.evaluate(linear, fifty, attack, options=EvaluationOptions(batch_size=20), progress=reports.append)
    assert [report.finished for report in reports] == [20, 40, 50] and {report.images for report in reports} == {50}
    assert reports[-1].accuracy == result.robust and reports[0].stage == "PGD at Linf 0.02"
    reports.clear()
    assert ads.evaluate(linear, fifty, progress=reports.append).clean == reports[-1].accuracy


def test_predictions_are_in_full_precision_whatever_was_set(linear, fifty):
    seen = []

    class Recording(nn.Module):
        def forward(self, images):
            settings = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
            seen.append((*settings, torch.is_autocast_enabled("cpu")))
            return linear(images)

    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with torch.autocast("cpu", torch.bfloat16):
            ads.evaluate(Recording().eval(), fifty)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert seen == [("ieee", "ieee", False)]


def test_an_attack_that_leaves_the_range_of_images_is_an_error(linear, fifty):
    with pytest.raises(ValueError, match=r"the attack left the range of images: .*\[0, 1\], got .*: clamp them"):
        ads.evaluate(linear, fifty, lambda model, images, labels: images + 1)


# --- arguments ----------------------------------------------------------------------------------------


def test_a_preset_is_given_by_its_name(model, data, toys, monkeypatch):
    made = []

    def brief(threat, *, seed=0):
        made.append(threat)
        return toys.cascade(threat)

    monkeypatch.setitem(ads.evaluation.evaluate.PRESETS, "fast", brief)
    options = EvaluationOptions(shard_size=6, alarms=False)
    found = ads.evaluate(model, data, "fast", Linf(0.02), options=options)
    assert made == [Linf(0.02)]
    assert toys.content(found) == toys.content(toys.run(model, data, toys.cascade(Linf(0.02))))
    with pytest.raises(ValueError, match="expected preset to be one of fast, standard, adaptive"):
        ads.evaluate(model, data, "quick", Linf(0.02))
    with pytest.raises(TypeError, match=r"expected a threat with the preset 'fast', got none: .*Linf\(8 / 255\)"):
        ads.evaluate(model, data, "fast")


def test_arguments_of_another_kind_are_refused(model, data, toys):
    cascade = toys.cascade()
    with pytest.raises(TypeError, match=r"expected a threat such as ads.Linf\(8 / 255\), got 0.03"):
        ads.fast_attack(0.03)
    with pytest.raises(TypeError, match=r"got the function that makes one: pass its name.*'fast', threat\)"):
        ads.evaluate(model, data, ads.fast_attack)
    with pytest.raises(TypeError, match=r"expected a torch module, got str: load a model by name with ads.load_model"):
        ads.evaluate("small-robust", data, cascade)
    with pytest.raises(TypeError, match="expected no threat with a cascade"):
        ads.evaluate(model, data, cascade, Linf(0.1))
    with pytest.raises(
        TypeError,
        match=r"expected devices, journal .* with PGD at Linf 0.1: leave .* from adaptive_smoothing.attacks.cascade",
    ):
        ads.evaluate(model, data, PGD(Linf(0.1)), journal="somewhere")
    with pytest.raises(TypeError, match=r"expected a threat such as ads.Linf\(8 / 255\), got 0.1"):
        ads.evaluate(model, data, PGD(Linf(0.1)), 0.1)
    with pytest.raises(TypeError, match="expected an attack with the threat, got none"):
        ads.evaluate(model, data, threat=Linf(0.1))
    with pytest.raises(TypeError, match="got one of them with no attack: leave them out"):
        ads.evaluate(model, data, journal="somewhere")
    for attack in (cascade, None):
        with pytest.raises(ValueError, match="expected a batch_size of at least 1, got 0"):
            ads.evaluate(model, data, attack, options=EvaluationOptions(batch_size=0))
    with pytest.raises(ValueError, match="expected a shard_size of at least 1, got 0"):
        EvaluationOptions(shard_size=0)


@pytest.mark.parametrize("kind", ["cascade", "clean", "pgd"])
def test_unusable_labels_logits_weights_modes_and_data_are_refused(model, data, toys, kind):
    """Most of them would look like a fragile model otherwise."""
    attack = {"cascade": toys.cascade(), "clean": None, "pgd": PGD(Linf(0.01), steps=2)}[kind]
    one_logit = nn.Sequential(nn.Flatten(), nn.Linear(192, 1)).eval()
    refused = {
        "expected labels from 0 to 3 for 4 classes, got 6 to 7": (
            model,
            ads.from_tensors(data.images, 6 + torch.arange(20) % 2),
        ),
        "expected at least two classes, got one logit per image: .* pass ads.wrap": (one_logit, data),
        r"got weights in torch.float64 \(.*\): call model.float\(\)": (toys.network().double(), data),
        "eval mode": (nn.Sequential(nn.Dropout(), model).train(), data),
        "empty": (model, data.take(0)),
    }
    for message, arguments in refused.items():
        with pytest.raises(ValueError, match=message):
            ads.evaluate(*arguments, attack)
    with pytest.raises(TypeError, match=re.escape("ads.from_tensors")):
        ads.evaluate(model.eval(), (data.floats(), data.labels), attack)
