"""Residual networks accept noisy images where they must, compile, run on any device, and name a wrong option."""

import pytest
import torch
from torch import nn

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.resnet import CIFAR10_MEAN, CIFAR10_STD
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import wrap


def network(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return build("wide_resnet", depth=10, width=1, num_classes=5, **options).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_noisy_images_are_accepted_in_smoothing_compiled_graphs_and_training(images):
    model, noisy = network(), images + torch.randn(images.shape)
    assert SmoothedClassifier(model, 1.0, samples=2)(images).isfinite().all()
    assert torch.compile(model, backend="eager", fullgraph=True)(noisy).isfinite().all()
    assert torch.compile(model.train(), backend="eager", fullgraph=True)(noisy).isfinite().all()
    assert model(noisy).isfinite().all()
    with pytest.raises(ValueError, match="expected images with 3 channels, got 1"):
        model(noisy[:, :1])


def test_a_network_is_one_graph_where_is_autocast_available_breaks_graphs(images, monkeypatch):
    """As in torch 2.11."""
    unseen = torch.compiler.disable(torch.amp.is_autocast_available)
    monkeypatch.setattr(torch.amp, "is_autocast_available", unseen)
    model = network()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(images), model(images))


def test_a_network_runs_on_a_device_without_autocast(images):
    logits = network().to("meta")(images.to("meta"))
    assert logits.device.type == "meta" and len(logits) == len(images)


def test_normalised_images_inside_a_wrapped_network_are_accepted(images):
    inside = network()
    outside = network(mean=[0.0] * 3, std=[1.0] * 3)
    outside.load_state_dict(inside.state_dict())
    wrapped = wrap(outside, mean=CIFAR10_MEAN, std=CIFAR10_STD)
    assert torch.equal(wrapped(images), inside(images))
    with trusted_images():
        assert wrapped(images + 1).isfinite().all()


def test_an_unknown_option_of_an_architecture_is_named():
    with pytest.raises(ValueError, match="expected an option of wide_resnet, got 'dept': did you mean 'depth'"):
        build("wide_resnet", dept=10)
    with pytest.raises(ValueError, match="got 'stem': choose one of width, activation, num_classes, mean, std"):
        build("preact_resnet18", stem=3)
