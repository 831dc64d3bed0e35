"""Tails: the part of a classifier after a layer reproduces its logits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adaptive_smoothing.mixing.fine_tuned_tail import tail_after
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.features import FeatureTaps, suggest_branch
from adaptive_smoothing.models.wrap import wrap

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("preact_resnet18", width=8).eval()


@pytest.mark.parametrize("layer", ["stem", "stage1", "stage3"])
def test_a_tail_reproduces_the_logits(layer):
    model = network()
    logits, features = FeatureTaps(model, [layer])(IMAGES)
    found, pooled = tail_after(model, layer)(features[layer])
    torch.testing.assert_close(found, logits)
    assert pooled.shape == (3, 64)


def test_a_tail_is_a_copy():
    model = network()
    tail = tail_after(model, "stage3")
    nn.init.zeros_(tail.head.weight)
    assert model.head.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "size", "layer"),
    [("resnet10t", 64, "layer3"), ("convnext_atto", 64, "stages.2"), ("vit_tiny_patch16_224", 224, "blocks.8")],
)
def test_tails_of_timm_networks(name, size, layer):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, num_classes=7).eval()
    assert suggest_branch(model, (3, size, size)) == layer
    images = torch.rand(2, 3, size, size)
    logits, features = FeatureTaps(model, [layer])(images)
    found, _ = tail_after(model, layer, (3, size, size))(features[layer])
    torch.testing.assert_close(found, logits, rtol=1e-3, atol=1e-4)


def test_a_tail_inside_a_wrapped_model():
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1176, 5)
    model = wrap(nn.Sequential(*layers).eval(), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    logits, features = FeatureTaps(model, ["model.1"])(IMAGES)
    torch.testing.assert_close(tail_after(model, "model.1")(features["model.1"])[0], logits)


class Functional(nn.Module):
    """Uses functions after its layers; with `past` also the features before the layer `a`."""

    def __init__(self, past=False):
        super().__init__()
        self.first, self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.head, self.past = nn.Linear(4, 5), past

    def forward(self, images):
        before = F.relu(self.first(images))
        features = self.a(before)
        features = F.relu(features + self.b(features)) + (before if self.past else 0.0)
        return self.head(F.adaptive_avg_pool2d(features, 1).flatten(1))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_tail_that_has_to_be_traced(wrapped):
    model, layer = Functional().eval(), "a"
    if wrapped:
        model, layer = wrap(model, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)), "model.a"
    logits, features = FeatureTaps(model, [layer])(IMAGES)
    tail = tail_after(model, layer)
    found, pooled = copy.deepcopy(tail)(features[layer])
    torch.testing.assert_close(found, logits)
    assert pooled.shape == (len(IMAGES), 4)
    assert {name.split(".")[-2] for name, _ in tail.named_parameters()} == {"b", "head"}
    assert not {*map(id, tail.parameters())} & {*map(id, model.parameters())}


class Branching(Functional):
    """Depends on the values of images, which cannot be traced."""

    def forward(self, images):
        return super().forward(images) if images.mean() > 0 else super().forward(-images)


@pytest.mark.parametrize("model", [Functional(past=True), Branching()])
def test_a_tail_that_needs_more_than_the_layer_is_refused(model):
    with pytest.raises(ValueError, match=r"from the output of 'a' alone.*MixingNetwork"):
        tail_after(model.eval(), "a")


def test_layers_without_a_tail_are_refused():
    with pytest.raises(ValueError, match="a linear layer in Functional after 'head'"):
        tail_after(Functional().eval(), "head")
    with pytest.raises(ValueError, match="did you mean 'stage1'"):
        tail_after(network(), "stag1")


def test_the_branch_of_our_networks():
    assert suggest_branch(network()) == "stage3"
    assert suggest_branch(build("wide_resnet", depth=10, width=1).eval()) == "stage2"
