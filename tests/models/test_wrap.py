"""`wrap` keeps the logits of a model, adds normalisation and resizing, and refuses models that are not classifiers."""

import math
from collections import OrderedDict
from dataclasses import make_dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.wrap import Classifier, Resize, num_classes, pick_logits, wrap

SHAPE = (3, 8, 8)
Answer = make_dataclass("Answer", ["features", "scores"])


class Returns(nn.Module):
    """A model that returns a function of the linear model's logits."""

    def __init__(self, model: nn.Module, function) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, images: Tensor):
        return self.function(self.model(images))


def test_a_classifier_compiles_into_one_graph(linear, images):
    classifier = wrap(linear, shape=SHAPE)
    compiled = torch.compile(classifier, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), linear(images))
    exported = torch.export.export(classifier, (images,)).module()
    assert torch.equal(exported(images), linear(images))


def test_wrap_keeps_the_logits_and_freezes(linear, images):
    linear.train().requires_grad_(True)
    classifier = wrap(linear, shape=SHAPE)
    assert isinstance(classifier, Classifier)
    assert classifier.num_classes == 4
    assert not linear.training and not linear.linear.weight.requires_grad
    assert torch.equal(classifier(images), linear(images))


def test_wrap_normalises_inside(linear, images):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    expected = linear((images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
    assert torch.allclose(wrap(linear, mean=mean, std=std, shape=SHAPE)(images), expected, atol=1e-5)
    half = linear((images - 0.5) / 0.5)
    assert torch.allclose(wrap(linear, mean=0.5, std=0.5, shape=SHAPE)(images), half, atol=1e-5)
    assert torch.allclose(wrap(linear, std=0.5, shape=SHAPE)(images), linear(images / 0.5), atol=1e-5)


def test_wrap_resizes_inside_and_stays_differentiable(linear):
    classifier = wrap(linear, size=8, shape=(3, 16, 16))
    grey = torch.full((2, 3, 16, 16), 0.25)
    assert torch.allclose(classifier(grey), linear(torch.full((2, 3, 8, 8), 0.25)), atol=1e-5)
    x = torch.rand(2, 3, 16, 16, requires_grad=True)
    classifier(x).sum().backward()
    assert x.grad is not None and (x.grad != 0).all()


def test_resize_keeps_an_image_of_the_right_size(images):
    assert Resize(8)(images) is images
    assert Resize((4, 2))(images).shape == (6, 3, 4, 2)


def test_wrap_takes_given_images(linear, images):
    assert wrap(linear, images=images).num_classes == 4
    with pytest.raises(ValueError, match=r"expected images in \[0, 1\]"):
        wrap(linear, images=images * 2)
    with pytest.raises(ValueError, match="expected at least one image"):
        wrap(linear, images=images[:0])


def test_wrapping_twice(linear, images):
    classifier = wrap(linear, shape=SHAPE)
    assert wrap(classifier) is classifier
    again = wrap(classifier, size=8, shape=(3, 16, 16))
    assert again is not classifier and torch.equal(again(images), classifier(images))


def test_classifier_guards_its_images(linear, images):
    classifier = wrap(linear, shape=SHAPE)
    with pytest.raises(ValueError, match=r"see ads.wrap"):
        classifier(images - 1)
    with trusted_images():
        assert torch.equal(classifier(images - 1), linear(images - 1))


@pytest.mark.parametrize(
    ("function", "output"),
    [
        (lambda z: (z, z.sum()), 0),
        (lambda z: [z.sum(), z], -1),
        (lambda z: {"scores": z}, "scores"),
        (lambda z: Answer(z[..., None], z), "scores"),
        (lambda z: z[:, :, None, None], lambda z: z.mean((2, 3))),
        (lambda z: OrderedDict(loss=None, logits=z), None),
        (lambda z: SimpleNamespace(loss=None, logits=z), None),
        (lambda z: z, None),
    ],
)
def test_wrap_picks_the_logits(linear, images, function, output):
    classifier = wrap(Returns(linear, function), output=output, shape=SHAPE)
    assert torch.equal(classifier(images), linear(images))


def test_an_output_that_does_not_exist_is_refused(linear):
    with pytest.raises(ValueError, match=r"to have 'logit', got dict with \['scores'\]"):
        pick_logits({"scores": 1}, "logit")
    with pytest.raises(ValueError, match="to have 3, got tuple"):
        pick_logits((1, 2), 3)
    with pytest.raises(ValueError, match="got a tensor: leave output= out"):
        wrap(linear, output=0, shape=SHAPE)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda z: z.softmax(1), ValueError, "got probabilities .*remove the final softmax"),
        (lambda z: (z, z.sum(1)), TypeError, "pass output=0 to ads.wrap"),
        (lambda z: z * math.nan, ValueError, "got NaN for 4 of 4 images"),
        (lambda z: z + torch.randn_like(z), ValueError, "same logits for the same images.*SmoothedClassifier"),
        (lambda z: nn.functional.dropout(z, 0.5, training=True), ValueError, "draws random numbers .dropout or noise"),
        (lambda z: z - z.mean(0), ValueError, "not to depend on the other images.*track_running_stats"),
        (lambda z: z[:, :1], ValueError, r"at least two classes, got one logit.*cat\(\[-z, z\]"),
        (lambda z: z.argmax(1), TypeError, "return the scores"),
        (lambda z: z[:2], ValueError, r"got \(2, 4\)"),
    ],
)
def test_wrap_refuses_models_that_are_not_classifiers(linear, function, kind, words):
    with pytest.raises(kind, match=words):
        wrap(Returns(linear, function), shape=SHAPE)


def test_log_probabilities_are_logits(linear, images):
    with pytest.warns(UserWarning, match="returns log-probabilities .* which are valid logits: probabilities"):
        classifier = wrap(Returns(linear, lambda z: z.log_softmax(1)), shape=SHAPE)
    assert torch.allclose(classifier(images), linear(images).log_softmax(1))
    again = wrap(Returns(linear, lambda z: z.softmax(1)), output=lambda p: p.clamp_min(1e-30).log(), shape=SHAPE)
    assert torch.allclose(again(images), linear(images).log_softmax(1), atol=1e-5)


def test_batch_norm_without_running_statistics_is_rejected():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    model.append(nn.Linear(4 * 36, 3))
    with pytest.raises(ValueError, match="not to depend on the other images"):
        wrap(model, shape=SHAPE)


def test_the_error_of_a_model_is_quoted(linear):
    with pytest.raises(ValueError, match=r"images of shape \(4, 3, 32, 32\).*RuntimeError: .*size= to resize"):
        wrap(linear)
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function"):
        wrap(lambda x: x)


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        (["a", "b", "c"], 1.0, r"expected mean as a number or 3 numbers, got \['a', 'b', 'c'\]: pass 0.5, or one"),
        (0.5, [None], r"expected std as a number or 3 numbers, got \[None\]"),
        ((0.5, 0.5), 1.0, r"expected mean with 1 or 3 values \(one per channel\), got 2"),
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), "divide both by 255"),
        (0.5, 0.0, "expected std above 0"),
    ],
)
def test_wrong_normalisation(linear, mean, std, words):
    with pytest.raises(ValueError, match=words):
        wrap(linear, mean=mean, std=std, shape=SHAPE)


def test_a_declared_normalisation_that_is_not_passed_is_a_warning(linear):
    linear.pretrained_cfg = {"mean": (0.5,), "std": (0.2,)}
    with pytest.warns(UserWarning, match=r"declares mean=\(0.5,\) and std=\(0.2,\), ads.wrap got neither"):
        wrapped = wrap(linear, shape=SHAPE)
    assert wrapped.num_classes == 4


def test_a_declared_normalisation_that_is_passed_is_no_warning(linear, recwarn):
    linear.pretrained_cfg = {"mean": (0.5,), "std": (0.2,)}
    wrap(linear, mean=0, std=1, shape=SHAPE)
    assert not recwarn.list


def test_number_of_classes(linear):
    assert num_classes(linear) == 4
    bare = nn.Sequential(nn.Flatten(), nn.Linear(192, 7))
    assert num_classes(bare, shape=SHAPE) == 7
    with pytest.raises(ValueError, match=r"pass ads.wrap the images= or shape="):
        num_classes(bare)


@pytest.mark.parametrize("size", [(3, 224, 224), "224", "22", 0, (8, -8), (8,), 8.0, (8.0, 8.0)])
def test_a_size_is_one_or_two_whole_numbers(linear, size):
    with pytest.raises(ValueError, match=r"expected size as one positive whole number or as \(height, width\), got"):
        wrap(linear, size=size, shape=(3, 16, 16))


def test_normalisation_may_be_a_tensor(linear, images):
    expected = wrap(linear, mean=0.5, std=0.25, shape=SHAPE)(images)
    assert torch.equal(wrap(linear, mean=torch.full((3,), 0.5), std=torch.tensor(0.25), shape=SHAPE)(images), expected)


def test_weights_in_another_precision_need_images_of_it(linear, images):
    with pytest.raises(ValueError, match=r"images in torch.float64, got weights in torch.float32: pass float32 images"):
        wrap(linear.float(), images=images.double())
    words = r"images in torch.float32, got weights in torch.float64: call model.float\(\), or pass images="
    with pytest.raises(ValueError, match=words):
        wrap(linear.double(), shape=SHAPE)
    assert wrap(linear, images=images.double())(images.double()).dtype == torch.float64
