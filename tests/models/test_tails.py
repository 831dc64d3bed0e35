"""Tails: what a classifier does after one of its layers, found and checked by its logits."""

import pytest
import torch
from torch import nn

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.features import FeatureTaps, suggest_branch
from adaptive_smoothing.models.tails import tail_after
from adaptive_smoothing.models.wrapping import wrap

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("preact_resnet18", width=8).eval()


@pytest.mark.parametrize("layer", ["stem", "stage1", "stage3"])
def test_a_tail_goes_on_where_the_layer_ends(layer):
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
def test_tails_of_foreign_networks(name, size, layer):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, num_classes=7).eval()
    assert suggest_branch(model, (3, size, size)) == layer
    images = torch.rand(2, 3, size, size)
    logits, features = FeatureTaps(model, [layer])(images)
    found, _ = tail_after(model, layer, (3, size, size))(features[layer])
    torch.testing.assert_close(found, logits, rtol=1e-3, atol=1e-4)


def test_a_tail_inside_a_wrapped_model():
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1176, 5)
    inner = nn.Sequential(*layers)
    model = wrap(inner.eval(), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    logits, features = FeatureTaps(model, ["model.1"])(IMAGES)
    torch.testing.assert_close(tail_after(model, "model.1")(features["model.1"])[0], logits)


class Shortcut(nn.Module):
    """What it does after `a` is not what it holds after `a`."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 5)

    def forward(self, images):
        features = self.a(images)
        return self.head((features + self.b(features)).mean((2, 3)))


def test_what_is_no_chain_is_refused():
    with pytest.raises(ValueError, match="to be its layers in their order"):
        tail_after(Shortcut().eval(), "a")
    with pytest.raises(ValueError, match="a linear layer in Shortcut after 'head'"):
        tail_after(Shortcut().eval(), "head")
    with pytest.raises(ValueError, match="did you mean 'stage1'"):
        tail_after(network(), "stag1")


def test_the_branch_of_our_networks():
    assert suggest_branch(network()) == "stage3"
    assert suggest_branch(build("wide_resnet", depth=10, width=1).eval()) == "stage2"
