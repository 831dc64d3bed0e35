"""Batch norm fused with the activation after it: the same logits and gradients, whoever wrote the network."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adaptive_smoothing.attacks.engine.batch_norm import FusedBatchNorm, activations_after_norms, has_kernels
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.inference import full_precision

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not has_kernels(torch.device("cuda")), reason="GPU"))]


class Sequence(nn.Module):
    """Convolution, norm, and what `after` makes of it."""

    def __init__(self, after, channels=5):
        super().__init__()
        self.convolution, self.norm, self.after = nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), after

    def forward(self, images):
        return self.after(self.norm(self.convolution(images))).flatten(1)


# What follows the norm, and how many norms are planned with an activation.
AFTER = {
    "relu": (F.relu, 1),
    "relu in place": (lambda x: F.relu(x, inplace=True), 1),
    "relu in place, used twice afterwards": (lambda x: (y := F.relu(x, inplace=True)) + 2 * y, 1),
    "method": (lambda x: x.relu(), 1),
    "silu": (nn.SiLU(), 1),
    "nothing": (lambda x: x, 0),
    "tanh": (torch.tanh, 0),
    "relu and the norm itself": (lambda x: F.relu(x) + x, 0),
    "the norm itself and relu": (lambda x: x.sum() + F.relu(x), 0),
    "two activations": (lambda x: F.relu(x) + F.silu(x), 0),
    "shape": (lambda x: F.relu(x) * x.shape[0], 1),
}


def prepared(model, device):
    """Return a frozen model with batch-norm statistics and weights that are not 0 and 1."""
    noise = torch.Generator().manual_seed(0)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor in (norm.running_mean, norm.bias.data):
                tensor.normal_(generator=noise)
            for tensor in (norm.running_var, norm.weight.data):
                tensor.uniform_(0.5, 2, generator=noise)
    return model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)


def images_on(device, count=3, size=8):
    images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    return images.to(device).contiguous(memory_format=torch.channels_last)


def logits_and_gradient(model, images):
    images = images.clone().requires_grad_()
    with full_precision():  # TF32 would enlarge differences in the last bit
        logits = model(images)
        return logits.detach(), torch.autograd.grad(logits.square().sum(), images)[0]


def fused(model, images):
    plan = activations_after_norms(model, images[:1])
    with FusedBatchNorm(plan):
        return logits_and_gradient(model, images), len(plan)


def assert_close(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", AFTER)
def test_fused_norms_give_the_same_logits_and_gradients(name, device):
    after, planned = AFTER[name]
    model = prepared(Sequence(after), device)
    found, count = fused(model, images_on(device))
    assert count == planned
    assert_close(found, logits_and_gradient(model, images_on(device)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 3, 64, 100])
def test_any_number_of_channels_is_right(channels, device):
    model = prepared(Sequence(F.relu, channels), device)
    assert_close(fused(model, images_on(device, 5, 11))[0], logits_and_gradient(model, images_on(device, 5, 11)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_every_norm_of_a_residual_network_is_fused(activation, device):
    model = prepared(build("wide_resnet", depth=10, width=1, activation=activation), device)
    found, count = fused(model, images_on(device, size=32))
    assert count == sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert_close(found, logits_and_gradient(model, images_on(device, size=32)), 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_norm_of_vectors_is_fused(device):
    layers = nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(6), nn.ReLU()
    model = prepared(nn.Sequential(*layers, nn.Linear(6, 4)), device)
    found, count = fused(model, images_on(device))
    assert count == 1
    assert_close(found, logits_and_gradient(model, images_on(device)))


def test_a_norm_that_is_shared_by_two_places_is_fused_only_if_both_have_the_same_activation():
    norm = nn.BatchNorm2d(3)
    for second, planned in ((F.relu, 1), (F.silu, 0), (torch.tanh, 0)):
        model = prepared(Sequence(lambda x, second=second: second(norm(F.relu(norm(x)))), 3), "cpu")
        model.norm = nn.Identity()
        prepared(norm, "cpu")
        found, count = fused(model, images_on("cpu"))
        assert count == planned
        assert_close(found, logits_and_gradient(model, images_on("cpu")))


def test_a_norm_in_training_or_with_weights_that_learn_is_left_alone():
    model = prepared(Sequence(F.relu), "cpu").train()
    plan = activations_after_norms(model, images_on("cpu"))
    assert not plan
    model.eval().norm.weight.requires_grad_()
    with FusedBatchNorm(plan):
        gradient = torch.autograd.grad(model(images_on("cpu")).sum(), model.norm.weight)[0]
    assert gradient.abs().sum() > 0


def test_nan_is_passed_on():
    model = prepared(Sequence(F.relu), "cpu")
    with FusedBatchNorm(activations_after_norms(model, images_on("cpu"))):
        assert model(images_on("cpu") * torch.nan).isnan().all()


def test_the_inside_of_a_functional_transform_is_left_alone():
    model, images = prepared(Sequence(F.relu), "cpu"), images_on("cpu")
    expected = torch.func.grad(lambda x: model(x).square().sum())(images)
    with FusedBatchNorm(activations_after_norms(model, images[:1])):
        found = torch.func.grad(lambda x: model(x).square().sum())(images)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("after", "expected"), [(F.relu, 1), (lambda x: x, 0)])
def test_only_what_is_needed_is_kept_for_the_backward_pass(after, expected):
    """The output of a norm is not kept, and without an activation neither is its input."""
    model, kept = prepared(Sequence(after), "cpu"), []
    inputs = model.convolution(images_on("cpu").requires_grad_())
    plan = activations_after_norms(model, images_on("cpu")[:1])
    with FusedBatchNorm(plan), torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        model.after(model.norm(inputs))
    assert sum(tensor.shape == inputs.shape for tensor in kept) == expected
