"""Models of other libraries are loaded by name as classifiers; a missing library or a wrong option is explained."""

import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import safetensors.torch
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.models import construction, third_party, zoo
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


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory) -> tuple[Path, torch.Tensor]:
    """The file of a user's torchvision model with seven classes, and its logits for `IMAGES`."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = models.squeezenet1_1(num_classes=7).eval()
    path = tmp_path_factory.mktemp("own+models") / "g.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    wrapped = ads.wrap(model, mean=0.5, std=(0.5, 0.4, 0.3), size=64)
    return path, wrapped(IMAGES)


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = "num_classes=7&mean=0.5&std=0.5,0.4,0.3&size=64"


@pytest.mark.parametrize(
    "layout",
    [
        lambda weights: weights,
        lambda weights: {"state_dict": weights, "epoch": 3},
        lambda weights: {"model": {f"module.{name}": value for name, value in weights.items()}},
        lambda weights: {"state_dict": {f"model.{name}": value for name, value in weights.items()}},
        lambda weights: {f"module._orig_mod.{name}": value for name, value in weights.items()},
    ],
)
def test_a_checkpoint_of_the_user_is_loaded_into_a_network_of_a_library(tmp_path, fine_tuned, layout):
    path, logits = fine_tuned
    for checkpoint in (path, tmp_path / "g.pt"):
        if checkpoint.suffix == ".pt":
            torch.save(layout(safetensors.torch.load_file(path)), checkpoint)
        model = zoo.load(f"torchvision:squeezenet1_1?checkpoint={checkpoint}&{OPTIONS}")
        assert torch.allclose(model(IMAGES), logits, atol=1e-6) and model.num_classes == 7


def test_a_checkpoint_for_timm(tmp_path):
    timm = pytest.importorskip("timm")
    network = timm.create_model("resnet10t", num_classes=7).eval()
    torch.save(network.state_dict(), tmp_path / "g.pth")
    model = zoo.load(f"timm:resnet10t?checkpoint={tmp_path}/g.pth&num_classes=7&size=48x32")
    assert model.first[0].size == (48, 32) and torch.equal(model.model.fc.weight, network.fc.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("checkpoint={}", r"expected weights for torchvision:squeezenet1_1, got others in .*: size mismatch"),
        ("checkpoint={}.no&num_classes=7", "expected weights at .*, got no file"),
        (
            "num_classes=7",
            "expected torchvision:squeezenet1_1 without num_classes, because it is pretrained: add checkpoint",
        ),
        ("pretrained=0&num_classes=seven", "expected num_classes as a whole number above 1, got 'seven'"),
        ("pretrained=0&size=a", "expected size as 224"),
        ("num_classes=7&checkpoint={}&pretrained=1", "leave pretrained=1 out, because the weights are those of check"),
        ("num_classes=7&checkpoint={}&num_classes=8", "expected the option num_classes once, got it twice"),
        ("pretrained=0&mean=125", "if they are for bytes, divide both by 255"),
    ],
)
def test_options_that_do_not_fit(fine_tuned, options, words):
    with pytest.raises((ValueError, OSError), match=words):
        zoo.load(f"torchvision:squeezenet1_1?{options.format(fine_tuned[0])}")


def test_one_of_several_sets_of_weights_is_chosen_with_key(tmp_path, fine_tuned):
    path, logits = fine_tuned
    weights = safetensors.torch.load_file(path)
    other = {name: value + 1 for name, value in weights.items()}
    torch.save({"model": other, "ema": weights}, tmp_path / "g.pt")
    name = f"torchvision:squeezenet1_1?checkpoint={tmp_path}/g.pt&{OPTIONS}"
    with pytest.raises(ValueError, match=r"got \['model', 'ema'\]: choose one .* or with &key= after checkpoint="):
        zoo.load(name)
    assert torch.allclose(zoo.load(f"{name}&key=ema")(IMAGES), logits, atol=1e-6)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_unknown_name_of_a_library_has_a_suggestion(library):
    pytest.importorskip(library)
    with pytest.raises(ValueError, match=f"unknown model 'resnet5' of {library}: did you mean 'resnet50'"):
        zoo.load(f"{library}:resnet5?pretrained=0")


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("x", True),
        ("x?pretrained=0", False),
        ("x?num_classes=7", False),
        ("x?checkpoint=a.pt&num_classes=7", True),
        ("x?size=64", True),
    ],
)
def test_a_name_fixes_the_weights_unless_some_are_random(text, fixed):
    assert third_party.fixes_weights("timm", text) == fixed


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
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda *_, revision, trust_remote_code: settings),
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
    safe = {"use_safetensors": True, "trust_remote_code": False}
    assert fake.asked == {"name": "owner/name", "revision": "abc", **safe}
    images = torch.rand(2, 3, 12, 12)
    assert torch.allclose(model(images), model.model((images - 0.5) / 0.5).logits, atol=1e-6)


def test_a_network_of_hugging_face_is_built_again_from_its_configuration(monkeypatch):
    """Nothing is downloaded, and code that a configuration refers to is not used."""
    asked = {}

    def from_config(config: dict[str, object], trust_remote_code: bool) -> nn.Module:
        assert not trust_remote_code
        asked.update(config)
        return nn.Linear(2, 3)

    fake = SimpleNamespace(
        AutoModelForImageClassification=SimpleNamespace(from_config=from_config),
        AutoConfig=SimpleNamespace(for_model=lambda **config: config),
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    network = nn.Linear(2, 3)
    network.config = SimpleNamespace(to_dict=lambda: {"model_type": "resnet", "depths": [1], "auto_map": {"a": "b.c"}})
    network._origin = {"name": "hf:owner/name"}
    build = construction.describe(network)
    assert build == {"library": "hf:owner/name", "config": {"model_type": "resnet", "depths": [1]}}
    assert construction.construct(build).weight.shape == (3, 2)
    assert asked == {"model_type": "resnet", "depths": [1]}


def test_a_network_of_hugging_face_without_its_weights(monkeypatch):
    """`from_pretrained` of the model, which downloads weights, is not there."""
    given = {"revision": "main", "trust_remote_code": False}
    fake = fake_transformers(12)
    fake.AutoConfig = SimpleNamespace(from_pretrained=lambda name, **options: (name, options))
    fake.AutoModelForImageClassification = SimpleNamespace(
        from_config=lambda config, trust_remote_code: nn.Linear(2, 3) if config == ("owner/name", given) else None
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    assert isinstance(third_party.untrained("hf", "owner/name"), nn.Linear)


def test_hugging_face_without_a_usable_size(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", fake_transformers({"longest_edge": 9}))
    with pytest.raises(ValueError, match=r"expected an image size .*, got \{'longest_edge': 9\}"):
        zoo.load("hf:owner/name")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_weights_that_cannot_be_downloaded(monkeypatch, library):
    module = pytest.importorskip(library if library == "timm" else "torchvision.models")

    def offline(*arguments: object, **options: object) -> nn.Module:
        raise URLError("no route to host")

    monkeypatch.setattr(module, "create_model" if library == "timm" else "get_model", offline)
    expected = rf"expected the weights of {library}:resnet18, got URLError: .*no route .* could not be downloaded"
    with pytest.raises(OSError, match=rf"{expected}.*checkpoint=PATH .*pretrained=0"):
        zoo.load(f"{library}:resnet18")


@pytest.mark.parametrize("name", ["fcn_resnet50", "fasterrcnn_resnet50_fpn", "r3d_18"])
def test_networks_of_torchvision_for_another_task_are_refused(name):
    pytest.importorskip("torchvision")
    with pytest.raises(ValueError, match=f"expected a classifier of images from torchvision, got '{name}': it has an"):
        zoo.load(f"torchvision:{name}?pretrained=0&num_classes=7")


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


def test_robustbench_without_a_network(monkeypatch):
    def load_model(**options: object) -> nn.Module:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(sys.modules, "robustbench", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "robustbench.utils", SimpleNamespace(load_model=load_model))
    with pytest.raises(
        OSError, match=r"weights of robustbench:Name2020, got ConnectionError: no route to host: they could"
    ):
        zoo.load("robustbench:Name2020")


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
    with pytest.raises(ImportError, match="nms does not exist: a compiled package was built for another torch"):
        zoo.load("timm:resnet18")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet18?pretraned=0", "unknown option 'pretraned' in .*: did you mean 'pretrained'"),
        ("timm:resnet18?checkpoint=a&b.pt", "unknown option 'b.pt' in .*; write & in a path as %26"),
        ("robustbench:X?eps=8", "unknown option 'eps' in .*: (choose one of dataset|did you mean 'std')"),
        ("timm:?pretrained=0", "expected a name before the options"),
        ("timm:resnet10t?pretrained=maybe", "as 0 or 1, got 'maybe': write pretrained=1 or pretrained=0"),
    ],
)
def test_wrong_options(name, words):
    with pytest.raises(ValueError, match=words):
        zoo.load(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm:resnet18", "timm:resnet18"),
        ("timm:resnet18?checkpoint=/home/me/g.pt&key=ema", "timm:resnet18"),
        ("torchvision:vgg11?num_classes=7&checkpoint=g.pt&size=64", "torchvision:vgg11?num_classes=7&size=64"),
    ],
)
def test_a_name_without_the_file_of_its_weights(name, expected):
    assert third_party.without_weights(name) == expected
