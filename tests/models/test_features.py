"""Taps return the outputs of layers from one pass and do not change the model."""

import copy

import pytest
import torch
from torch import Tensor, nn

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.features import FeatureTaps, suggest_taps
from adaptive_smoothing.models.wrap import wrap


class Twice(nn.Module):
    """Uses one layer twice, one never, and returns a tuple from another."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(3, 3, 1)
        self.unused = nn.Conv2d(3, 3, 1)
        self.pair = Pair()
        self.head = nn.Linear(192, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pair(self.shared(self.shared(images)))[0].flatten(1))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 5))
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), head).eval()


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_features_are_the_outputs_of_the_layers(model, images):
    logits, features = FeatureTaps(model, ["0", "2.0"])(images)
    assert torch.equal(logits, model(images))
    assert list(features) == ["0", "2.0"]
    # The ReLU after this layer works in place; the tap has the negative values.
    assert torch.equal(features["0"], model[0](images)) and (features["0"] < 0).any()
    assert torch.equal(features["2.0"], model[1](model[0](images)).flatten(1))


def test_one_forward_pass_and_no_hooks_left(model, images):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    FeatureTaps(model, ["0", "1"])(images)
    handle.remove()
    assert len(calls) == 1 and hooks(model) == 0


def test_hooks_are_removed_when_the_model_fails(model, images):
    taps = FeatureTaps(model, ["0", "1"])
    with pytest.raises(RuntimeError):
        taps(images[:, :2])
    assert hooks(model) == 0
    assert torch.equal(taps(images)[0], model(images))


def test_attached_hooks_serve_many_calls(model, images):
    taps = FeatureTaps(model, ["0"])
    with taps.attached(), taps.attached():
        assert hooks(model) == 1
        assert torch.equal(taps(images)[1]["0"], taps(images)[1]["0"])
    assert hooks(model) == 0


def test_gradients_flow_through_features(model, images):
    x = images.clone().requires_grad_()
    logits, features = FeatureTaps(model, ["0"])(x)
    (logits.sum() + features["0"].sum()).backward()
    assert x.grad is not None
    y = images.clone().requires_grad_()
    (model(y).sum() + model[0](y).sum()).backward()
    assert torch.allclose(x.grad, y.grad, atol=1e-6)


def test_taps_keep_no_reference_to_the_batch(model, images):
    taps = FeatureTaps(model, ["0"])
    taps(images)
    assert taps._outputs == {}


def test_nested_wraps(linear, images):
    classifier = wrap(wrap(linear, shape=(3, 8, 8)), size=8, shape=(3, 8, 8))
    logits, features = FeatureTaps(classifier, ["model.model.linear"])(images)
    assert torch.equal(features["model.model.linear"], logits)
    with pytest.raises(ValueError, match=r"got 'linear': did you mean 'model.model.linear'"):
        FeatureTaps(classifier, ["linear"])


def test_copies_are_independent(model, images):
    taps = FeatureTaps(model, ["0"])
    twin = copy.deepcopy(taps)
    nn.init.zeros_(model[0].weight)
    assert not torch.equal(taps(images)[1]["0"], twin(images)[1]["0"])


def test_compiles_into_one_graph(model, images):
    taps = FeatureTaps(model, ["0"])
    logits, features = taps(images)

    def tapped(x: Tensor) -> tuple[Tensor, Tensor]:
        out, found = taps(x)
        return out, found["0"]

    with taps.attached():
        out, feature = torch.compile(tapped, backend="eager", fullgraph=True)(images)
    assert torch.equal(out, logits) and torch.equal(feature, features["0"])


@pytest.mark.parametrize(
    ("layer", "kind", "words"),
    [
        ("shared", ValueError, "'shared' to run once .* it ran 2 times: tap the layer that calls it"),
        ("unused", ValueError, "'unused' to run once .* it ran never: tap one that the forward pass uses"),
        ("pair", TypeError, "'pair' to return a tensor, got tuple: tap a layer inside it"),
    ],
)
def test_layers_that_cannot_be_tapped(images, layer, kind, words):
    with pytest.raises(kind, match=words):
        FeatureTaps(Twice(), [layer])(images)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (["stage9"], "of PreActResNet, got 'stage9': did you mean 'stage"),
        (["xyz"], "got 'xyz': did you mean"),
        ([""], "got ''"),
        ([], r"list of different layer names, got \[\]"),
        ("stage1", "got 'stage1'"),
        (["stage1", "stage1"], "different layer names"),
    ],
)
def test_wrong_names(layers, words):
    with pytest.raises(ValueError, match=words):
        FeatureTaps(build("preact_resnet18", width=2), layers)


# --- suggestions


@pytest.mark.parametrize("arch", [("preact_resnet18", {"width": 2}), ("wide_resnet", {"depth": 10, "width": 1})])
def test_suggests_the_first_stages_of_our_networks(arch):
    model = build(arch[0], **arch[1])
    assert suggest_taps(model) == ["stage1", "stage2"]
    assert suggest_taps(model, count=3) == ["stage1", "stage2", "stage3"]
    assert suggest_taps(wrap(model)) == ["model.stage1", "model.stage2"]
    assert suggest_taps(wrap(wrap(model), size=32)) == ["model.model.stage1", "model.model.stage2"]


def test_a_suggestion_does_not_change_the_model():
    model = build("preact_resnet18", width=2).train()
    model.stage2.eval()
    before = copy.deepcopy(model.state_dict())
    suggest_taps(model)
    assert hooks(model) == 0 and model.stage1.training and not model.stage2.training and model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_plain_sequences():
    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]

    pooled = nn.Sequential(*conv(3, 4), nn.MaxPool2d(2), *conv(4, 4), *conv(4, 4), nn.MaxPool2d(2), nn.Flatten())
    assert suggest_taps(pooled, (3, 8, 8)) == ["1", "6"]
    flat = nn.Sequential(*conv(3, 4), *conv(4, 4), nn.Flatten(), nn.Linear(256, 3))
    assert suggest_taps(flat, (3, 8, 8)) == ["1", "3"]
    with pytest.raises(ValueError, match=r"at least 9 layers to tap, found \['0', '1', '2', '3'\]: name the layers"):
        suggest_taps(flat, (3, 8, 8), count=9)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("convnext_atto", 64, ["stages.0", "stages.1"]),
        ("vit_tiny_patch16_224", 224, ["blocks.2", "blocks.5"]),
        ("resnet18", 64, ["layer1", "layer2"]),
    ],
)
def test_timm(name, size, expected):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False, num_classes=3).eval()
    found = suggest_taps(model, (3, size, size))
    assert found == expected
    logits, features = FeatureTaps(model, found)(torch.rand(2, 3, size, size))
    assert logits.shape == (2, 3) and list(features) == found


def test_torchvision():
    models = pytest.importorskip("torchvision.models")
    assert suggest_taps(models.resnet18(num_classes=3), (3, 64, 64)) == ["layer1", "layer2"]
    assert suggest_taps(models.mobilenet_v2(num_classes=3), (3, 64, 64)) == ["features.1", "features.3"]


def test_a_model_for_images_of_another_size_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 12 * 12, 5))
    with pytest.raises(ValueError, match=r"to accept images of 3 x 32 x 32, got an error \(.+\): pass shape="):
        suggest_taps(model)
    assert suggest_taps(model, (3, 16, 16)) == ["1", "2"]
