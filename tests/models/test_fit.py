"""A model and data that do not belong together are noticed; what is legitimate is not."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions


def pictures(classes: int, names: list[str] | None = None) -> ads.ImageData:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ads.from_tensors(pixels, torch.arange(12) % classes, name="pictures", classes=names)


class Logs(nn.Module):
    """The logarithm of the softmax of a model, with a lower limit of the probabilities."""

    def __init__(self, model: nn.Module, least: float = 0.0) -> None:
        super().__init__()
        self.model, self.least = model, least

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).log_softmax(1).clamp_min(-torch.inf if not self.least else self.least)


def test_another_number_of_classes_is_noticed(linear):
    expected = r"pictures has 3 classes \(ant, bee, cat\), but the model has 4 outputs"
    with pytest.warns(UserWarning, match=expected) as seen:
        found = ads.evaluate(linear, pictures(3, ["ant", "bee", "cat"]))
    assert len(seen) == 1 and len(found.labels) == len(pictures(3)) and seen[0].filename == __file__
    with pytest.warns(UserWarning, match=r"has 5 classes \(a, b, c, d, ...\), but the model has 4 outputs") as seen:
        ads.evaluate(linear, pictures(4, list("abcde")))
    assert len(seen) == 1


def test_folders_with_numbers_as_names_are_known_classes(linear, tmp_path):
    for name in ("0", "1", "2"):
        (tmp_path / "numbered" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "numbered" / name / "1.png")
    with pytest.warns(UserWarning, match=r"has 3 classes \(0, 1, 2\), but the model has 4 outputs") as seen:
        found = ads.evaluate(linear, ads.load_data(tmp_path / "numbered"))
    assert len(seen) == 1 and found.labels.tolist() == [0, 1, 2]


def test_small_labels_of_many_images_are_noticed(linear):
    def numbers(images: int, classes: int) -> ads.ImageData:
        return ads.from_tensors(torch.zeros(images, 3, 8, 8, dtype=torch.uint8), torch.arange(images) % classes)

    with pytest.warns(
        UserWarning, match="data has 40 images and no label above 2, but the model has 4 outputs"
    ) as seen:
        ads.evaluate(linear, numbers(40, 3))
    assert len(seen) == 1
    for few in (numbers(39, 2), numbers(200, 4), numbers(200, 3).take(20)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ads.evaluate(linear, few)


def test_the_labels_of_a_file_without_names_are_no_known_classes(linear, tmp_path):
    images, labels = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6) % 3
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    np.savez(tmp_path / "b.npz", images=images, labels=labels, classes=list("012"))
    assert not ads.load_data(tmp_path / "a.npz").classes_known
    assert ads.load_data(tmp_path / "b.npz").classes_known
    assert ads.load_data(tmp_path / "a.npz", classes=["0", "1", "2", "3"]).classes_known


def test_probabilities_are_noticed(linear):
    with pytest.warns(UserWarning, match="the model returns probabilities .* return the logits before softmax") as seen:
        ads.evaluate(nn.Sequential(linear, nn.Softmax(1)).eval(), pictures(4), lambda model, images, labels: images)
    assert len(seen) == 1


def test_a_cascade_notices_it_as_well(linear):
    cascade = ads.preset("fast", ads.Linf(0.001))
    with pytest.warns(UserWarning, match="pictures has 3 classes"):
        found = ads.evaluate(linear, pictures(3, ["ant", "bee", "cat"]).take(2), cascade)
    assert len(found.labels) == 2 and found.stages


def test_a_cascade_without_alarms_notices_declared_classes(linear):
    cascade, options = ads.preset("fast", ads.Linf(0.001)), EvaluationOptions(alarms=False)
    for model in (linear, ads.MixedClassifier(linear, linear, 0.5)):
        with pytest.warns(UserWarning, match="pictures has 3 classes") as seen:
            found = ads.evaluate(model, pictures(3, ["ant", "bee", "cat"]).take(2), cascade, options=options)
        assert len(seen) == 1 and found.alarms is None


def test_images_of_one_class_are_noticed(linear):
    one = pictures(1, ["ant", "bee", "cat", "dog"])
    with pytest.warns(UserWarning, match=r"all 12 images of pictures have the label 0 \(ant\): a constant prediction"):
        found = ads.evaluate(linear, one)
    assert found.labels.tolist() == [0] * 12


def test_what_is_legitimate_raises_no_warning(linear):
    mixed = ads.MixedClassifier(linear, linear, 0.5)
    smoothed = ads.SmoothedClassifier(linear, 0.25, samples=2)
    named = pictures(4, ["ant", "bee", "cat", "dog"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ads.evaluate(linear, pictures(3))  # without names the number of classes is unknown
        ads.evaluate(linear, named.take(1))
        for model in (linear, mixed, smoothed, nn.Sequential(mixed).eval(), ads.wrap(mixed, shape=(3, 8, 8))):
            ads.evaluate(model, named, options=EvaluationOptions(batch_size=5))


def test_log_probabilities_are_noticed_once(linear):
    with pytest.warns(UserWarning, match="returns log-probabilities .* valid logits: probabilities, predictions"):
        found = ads.evaluate(Logs(linear).eval(), pictures(4))
    assert torch.equal(found.clean_predictions, ads.evaluate(linear, pictures(4)).clean_predictions)
    with pytest.warns(UserWarning, match="log-probabilities"):
        wrapped = ads.wrap(Logs(linear).eval(), shape=(3, 8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ads.evaluate(wrapped, pictures(4))


def test_clipped_log_probabilities_lose_their_gradient(linear):
    sharp = nn.Sequential(linear, nn.Identity()).eval()
    with torch.no_grad():
        linear.linear.weight.mul_(50)
    with pytest.warns(UserWarning, match="small probabilities were clipped and have no gradient: return the logits"):
        ads.evaluate(Logs(sharp, least=-10.0).eval(), pictures(4))
    images = pictures(4).floats().requires_grad_()
    clipped = Logs(sharp, least=-10.0)(images)
    least = clipped[clipped == -10.0]
    assert len(least) and not torch.autograd.grad(least.sum(), images)[0].any()


@pytest.mark.filterwarnings("ignore:a clean accuracy of 1 % was requested")
def test_tuning_and_certification_notice_it_by_the_declared_classes(linear):
    data = pictures(3, ["ant", "bee", "cat"])
    mixed = ads.MixedClassifier(linear, linear, 0.5)
    for call in (
        lambda: ads.tune(mixed, data, clean_accuracy=0.01),
        lambda: ads.tradeoff(linear, linear, data, ads.PGD(ads.Linf(0.01), steps=1), mix_alphas=[0.5]),
        lambda: ads.certify(ads.SmoothedClassifier(linear, 0.25), data.take(2), samples=10),
    ):
        with pytest.warns(UserWarning, match="pictures has 3 classes") as seen:
            call()
        assert sum("has 3 classes" in str(warning.message) for warning in seen) == 1
