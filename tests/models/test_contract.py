"""The contract of a classifier: valid tensors and models pass, others raise errors that say what to do."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from adaptive_smoothing.models.contract import (
    check_eval,
    check_image_form,
    check_image_values,
    check_images,
    check_labels,
    check_logits,
    freeze,
    guard_images,
    trusted_images,
    with_zero_gradient,
)
from adaptive_smoothing.models.wrap import Classifier, Resize, num_classes, pick_logits, wrap

SHAPE = (3, 8, 8)


class Returns(nn.Module):
    """A model that returns a function of the linear model's logits."""

    def __init__(self, model: nn.Module, function) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, images: Tensor):
        return self.function(self.model(images))


# --- images


def test_images_in_the_box_pass(images):
    check_images(images)
    check_images(torch.zeros(0, 3, 8, 8))
    check_images(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    check_images(images.half())
    check_images(torch.full((1, 1, 2, 2), 1 + 5e-7))


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        ([[1.0]], TypeError, "expected images as a tensor, got list"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), TypeError, r"got torch.uint8.*images.float\(\) / 255"),
        (torch.zeros(3, 8, 8), ValueError, r"shape \(N, C, H, W\), got \(3, 8, 8\).*unsqueeze\(0\)"),
        (torch.zeros(2, 192), ValueError, r"got \(2, 192\): reshape"),
        (torch.zeros(2, 8, 8, 3), ValueError, r"looks like \(N, H, W, C\): pass images.permute\(0, 3, 1, 2\)"),
        (torch.zeros(2, 28, 28, 1), ValueError, r"permute\(0, 3, 1, 2\)"),
    ],
)
def test_wrong_form(bad, kind, words):
    with pytest.raises(kind, match=words):
        check_image_form(bad)


@pytest.mark.parametrize("shape", [(2, 3, 8, 3), (2, 1, 8, 1), (2, 5, 1, 1), (2, 16, 3, 3)])
def test_narrow_images_are_not_taken_for_channels_last(shape):
    check_image_form(torch.zeros(shape))


def test_normalised_images_are_refused_with_a_hint():
    bad = torch.tensor([-2.1, 2.6]).view(2, 1, 1, 1)
    words = r"in \[0, 1\], got \[-2.1, 2.6\]: normalisation belongs inside the model; see ads.wrap"
    with pytest.raises(ValueError, match=words):
        check_image_values(bad)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 255.0, r"got \[0, 255\]: they look like bytes; divide them by 255"),
        (0.0, 1.01, r"got \[0, 1.01\]"),
        (0.0, math.nan, "got NaN"),
        (0.0, math.inf, r"got \[0, inf\]: .*infinite value"),
    ],
)
def test_wrong_values(low, high, words):
    with pytest.raises(ValueError, match=words):
        check_images(torch.tensor([low, high]).view(1, 1, 1, 2))


def test_guard_reads_values_outside_of_attacks_and_trusted_contexts(images):
    bad = images + 1
    with pytest.raises(ValueError, match=r"got \[1"):
        guard_images(bad)
    guard_images(bad.clone().requires_grad_())
    with trusted_images():
        guard_images(bad)
    with pytest.raises(ValueError, match="permute"), trusted_images():
        guard_images(torch.zeros(2, 8, 8, 3))
    with pytest.raises(ValueError, match=r"got \[1"):
        guard_images(bad)


def test_guard_inside_function_transforms(images):
    def total(x: Tensor) -> Tensor:
        guard_images(x)
        return (x**2).sum()

    def one(x: Tensor) -> Tensor:
        return total(x[None])

    assert torch.allclose(torch.func.grad(total)(images), 2 * images)
    assert torch.allclose(torch.func.jacrev(total)(images), 2 * images)
    assert torch.allclose(torch.func.jacfwd(one)(images[0]), 2 * images[0])
    assert torch.allclose(torch.vmap(one)(images), (images**2).sum((1, 2, 3)))
    assert torch.allclose(torch.vmap(torch.func.grad(one))(images), 2 * images)


def test_guard_without_values(images):
    outside = images + 9
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        guard_images(outside)
    guard_images(outside.to("meta"))  # has no values
    with FakeTensorMode() as mode:
        guard_images(mode.from_tensor(outside))


def test_guard_compiles_into_one_graph(linear, images):
    classifier = wrap(linear, shape=SHAPE)
    compiled = torch.compile(classifier, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), linear(images))
    exported = torch.export.export(classifier, (images,)).module()
    assert torch.equal(exported(images), linear(images))


# --- labels and logits


def test_labels_pass(images):
    check_labels(torch.tensor([0, 1, 2, 3, 0, 1]), images, 4)
    check_labels(torch.zeros(0, dtype=torch.long), images[:0], 4)
    check_labels(torch.tensor([0, 1, 2, 300, 0, 1]), images)


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        ([0] * 6, TypeError, "expected labels as a tensor, got list"),
        (torch.zeros(6), TypeError, r"got torch.float32: pass labels.long\(\)"),
        (torch.zeros(6, 4), TypeError, r"one-hot rows pass labels.argmax\(1\)"),
        (torch.zeros(5, dtype=torch.long), ValueError, r"shape \(6,\), got \(5,\)"),
        (torch.zeros(6, 1, dtype=torch.long), ValueError, r"got \(6, 1\)"),
        (torch.tensor([1, 2, 3, 4, 1, 1]), ValueError, "from 0 to 3 for 4 classes, got 1 to 4: .*start at 0"),
        (torch.tensor([0, -1, 0, 0, 0, 0]), ValueError, "got -1 to 0"),
        (torch.zeros(6, dtype=torch.long, device="meta"), ValueError, "expected labels on cpu"),
    ],
)
def test_wrong_labels(images, bad, kind, words):
    with pytest.raises(kind, match=words):
        check_labels(bad, images, 4)


Pair = namedtuple("Pair", ["gate", "scores"])


@dataclass
class Answer:
    features: Tensor
    scores: Tensor


def test_logits_pass(images, linear):
    check_logits(linear(images), images)


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (
            (torch.zeros(6, 4), torch.zeros(6)),
            TypeError,
            r"got tuple with 0: tensor \(6, 4\).*pass output=0 to ads.wrap",
        ),
        (Pair(torch.zeros(6), torch.zeros(6, 4)), TypeError, "got Pair.*pass output='scores'"),
        (OrderedDict(loss=None, logits=torch.zeros(6, 4)), TypeError, "'logits' probably holds.*output='logits'"),
        (Answer(torch.zeros(6, 4, 2), torch.zeros(6, 4)), TypeError, "got Answer.*output='scores'"),
        ({"a": 1}, TypeError, "got dict with a: int: pass output=<name"),
        (None, TypeError, "got NoneType: pass output="),
        (torch.zeros(6, dtype=torch.long), TypeError, "got torch.int64: return the scores"),
        (torch.zeros(6), ValueError, r"shape \(6, classes\) for 6 images, got \(6,\)"),
        (torch.zeros(5, 4), ValueError, r"got \(5, 4\)"),
        (torch.zeros(6, 4, 2, 2), ValueError, "output=<function>"),
        (torch.zeros(6, 4).index_fill(0, torch.tensor([1, 2]), math.nan), ValueError, "got NaN for 2 of 6 images"),
        (torch.zeros(6, 4).index_fill(0, torch.tensor([0]), -math.inf), ValueError, "got infinite values for 1 of 6"),
    ],
)
def test_wrong_logits(images, bad, kind, words):
    with pytest.raises(kind, match=words):
        check_logits(bad, images)


# --- train mode


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.BatchNorm2d(3), "BatchNorm2d"), (nn.Dropout(0.5), "Dropout"), (nn.RReLU(), "RReLU"), (Noisy(), "Noisy")],
)
def test_train_mode_names_the_first_layer(layer, name):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU(), layer), nn.BatchNorm2d(3))
    with pytest.raises(ValueError, match=rf"its layer '1.1' \({name}\) in train mode: call model.eval\(\)"):
        check_eval(model)
    check_eval(model.eval())
    model[1].train()
    with pytest.raises(ValueError, match=r"'1.1'"):
        check_eval(model)


def test_train_mode_without_effect_is_accepted(linear):
    check_eval(nn.Sequential(nn.Conv2d(3, 3, 1), nn.LayerNorm(8), nn.Dropout(0.0)).train())
    check_eval(linear.train())
    with pytest.raises(ValueError, match="got BatchNorm2d in train mode"):
        check_eval(nn.BatchNorm2d(3))


def test_freeze():
    model = freeze(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    assert not any(module.training for module in model.modules())
    assert not any(weight.requires_grad for weight in model.parameters())


# --- wrap


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
    assert torch.equal(classifier.logits(images - 1), linear(images - 1))


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


def test_nan_logits_may_come_from_alpha(images):
    with pytest.raises(ValueError, match=r"an alpha module that leaves \[0, 1\]"):
        check_logits(torch.full((len(images), 2), math.nan), images)


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_a_zero_gradient_changes_no_logit(images, value):
    x = images.clone().requires_grad_()
    logits = torch.full((len(images), 2), value)
    anchored = with_zero_gradient(logits, x)
    assert torch.equal(anchored.nan_to_num(7.0), logits.nan_to_num(7.0))
    assert torch.equal(torch.autograd.grad(anchored.sum(), x)[0], torch.zeros_like(x))
