"""The contract of a classifier: valid images, labels, logits and models pass, others raise helpful errors."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import make_dataclass

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
        (0.0, math.nan, r"got \[nan, nan\]: find the step of the data pipeline that produces NaN"),
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
Answer = make_dataclass("Answer", ["features", "scores"])


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
