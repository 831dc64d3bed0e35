"""Models of other libraries are loaded by name as classifiers; a missing library or a wrong option is explained."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from adaptive_smoothing.models import third_party, zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.wrap import Classifier


def test_timm():
    pytest.importorskip("timm")
    model = zoo.load("timm:resnet10t?pretrained=0&num_classes=3")
    assert isinstance(model, Classifier) and model.num_classes == 3 and not model.training
    images = torch.rand(2, 3, *model.first[0].size)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(model(images), model.model((images - mean) / std), atol=1e-4)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 3)


def test_torchvision():
    pytest.importorskip("torchvision")
    model = zoo.load("torchvision:resnet18?pretrained=0")
    assert model.num_classes == 1000 and model.first[0].size == (224, 224)
    assert model.first[1].mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def fake_transformers(size: object, **processor: object) -> SimpleNamespace:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 6)

        def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
            assert pixel_values.shape[-2:] == (12, 12)
            return SimpleNamespace(loss=None, logits=self.head(pixel_values.mean((2, 3))))

    asked = {}

    def from_pretrained(name: str, **options: object) -> nn.Module:
        asked.update(options, name=name)
        return Vision()

    settings = SimpleNamespace(image_mean=[0.5] * 3, image_std=[0.5] * 3, size=size, **processor)
    return SimpleNamespace(
        AutoModelForImageClassification=SimpleNamespace(from_pretrained=from_pretrained),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda *_, **__: settings),
        asked=asked,
    )


@pytest.mark.parametrize(
    ("size", "more"),
    [
        ({"height": 12, "width": 12}, {}),
        ({"shortest_edge": 12}, {}),
        (12, {}),
        ({"shortest_edge": 16}, {"do_center_crop": True, "crop_size": {"height": 12, "width": 12}}),
    ],
)
def test_hugging_face(monkeypatch, size, more):
    fake = fake_transformers(size, **more)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    model = zoo.load("hf:owner/name?revision=abc")
    assert fake.asked == {"name": "owner/name", "revision": "abc", "use_safetensors": True}
    images = torch.rand(2, 3, 12, 12)
    assert torch.allclose(model(images), model.model((images - 0.5) / 0.5).logits, atol=1e-6)


def test_hugging_face_without_a_usable_size(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", fake_transformers({"longest_edge": 9}))
    with pytest.raises(ValueError, match=r"expected an image size .*, got \{'longest_edge': 9\}"):
        zoo.load("hf:owner/name")


def test_robustbench(monkeypatch):
    asked, model = {}, build("wide_resnet", depth=10, width=1, num_classes=5)

    def load_model(**options: object) -> nn.Module:
        asked.update(options)
        return model

    monkeypatch.setitem(sys.modules, "robustbench", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "robustbench.utils", SimpleNamespace(load_model=load_model))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(zoo.load("robustbench:Name2020")(images), model(images))
    assert asked.pop("model_dir").endswith("robustbench")
    assert asked == {"model_name": "Name2020", "dataset": "cifar10", "threat_model": "Linf"}
    zoo.load("robustbench:Name2020?dataset=cifar100&threat=L2")
    assert (asked["dataset"], asked["threat_model"]) == ("cifar100", "L2")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("timm:resnet18", "timm", "timm"),
        ("torchvision:resnet18", "torchvision.models", "torchvision"),
        ("hf:a/b", "transformers", "hf"),
        ("robustbench:X", "robustbench.utils", "robustbench"),
    ],
)
def test_a_missing_library_names_its_extra(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'adaptive-smoothing\[{extra}\]'"):
        zoo.load(name)


def test_a_library_that_fails_to_import_is_not_reported_as_missing(monkeypatch):
    def fail(_: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(third_party.importlib, "import_module", fail)
    with pytest.raises(ImportError, match="nms does not exist: it was built for another torch; reinstall both"):
        zoo.load("timm:resnet18")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet18?pretraned=0", "unknown option 'pretraned' in .*: did you mean 'pretrained'"),
        ("robustbench:X?eps=8", "unknown option 'eps' in .*: choose one of dataset, threat"),
        ("timm:?pretrained=0", "expected a name before the options"),
        ("timm:resnet10t?pretrained=maybe", "expected 0 or 1, got 'maybe'"),
    ],
)
def test_wrong_options(name, words):
    with pytest.raises(ValueError, match=words):
        zoo.load(name)
