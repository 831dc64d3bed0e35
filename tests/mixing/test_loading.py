"""Models of the user are loaded by name through a function, or from another library, with a given preprocessing."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels, check_classes, facts_of
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.origin import loaded_identity, origin

CODE = """
import torch
from torch import nn
import adaptive_smoothing as ads

def load(name):
    if name.startswith("none"):
        return {}["no such model"]
    if name.startswith("text"):
        return "a text"
    torch.manual_seed(len(name))
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 7))
    return ads.wrap(network, mean=0.5, std=0.5) if name.startswith("wrapped") else network

def make():
    return load("any")

make_too = make
"""
LOADER = "my_loader_code:load"
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def my_code(tmp_path, monkeypatch):
    """The working folder with the user's module, and without a zoo."""
    (tmp_path / "my_loader_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    sys.modules.pop("my_loader_code", None)


def test_a_function_of_the_user_returns_a_network_that_is_wrapped():
    own = OwnModels(LOADER, {"mean": "0.4,0.5,0.6", "std": "1/4", "size": "16"})
    (model,) = own.load(["mine"], "cpu")
    assert model.first[0].size == (16, 16) and model.first[1].mean.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert not model.training and model.num_classes == 7
    facts = facts_of(model)
    assert facts == {"name": "mine", "loader": LOADER, "weights": loaded_identity(model).weights}


def test_names_of_the_package_do_not_go_to_the_loader():
    g, h = OwnModels(LOADER, {"size": "16"}).load(["compact-robust", "compact-rob"], "cpu")
    assert "arch" in origin(g) and origin(h)["loader"] == LOADER
    assert facts_of(g)["sha256"] == zoo.find_card("compact-robust").sha256


def test_a_wrapped_classifier_is_not_wrapped_again():
    (model,) = OwnModels(LOADER).load(["wrapped"], "cpu")
    assert len(model.first) == 1
    with pytest.raises(
        ValueError, match=r"without preprocessing for --size, got one that my_loader_code:load has wrapped"
    ):
        OwnModels(LOADER, {"size": "16"}).load(["wrapped"], "cpu")


@pytest.mark.parametrize(
    ("own", "name", "words"),
    [
        ({"loader": LOADER}, "none", r"for 'none' from my_loader_code:load, got KeyError in my_loader_code.py, line 8"),
        ({"loader": LOADER}, "text", r"for 'text' from my_loader_code:load, got str: return a torch.nn.Module"),
        ({}, "mine", "expected the name of a model"),
        (
            {"preprocessing": {"size": "16"}},
            "compact-robust",
            "expected --size with a model of yours .* got compact-robust",
        ),
        ({"preprocessing": {"size": "big"}}, "mine", "expected size as 224, or as 224x192 .* got 'big'"),
        ({"preprocessing": {"mean": "a,b"}}, "mine", r"expected mean as 0.5, or as 0.485,0.456,0.406 .* got 'a,b'"),
        ({"loader": LOADER, "preprocessing": {"mean": "0.5,0.5"}}, "mine", "mean with 1 or 3 values"),
        ({"loader": "my_loader_code"}, "mine", "expected --loader as module:function"),
        ({"loader": ""}, "mine", "expected --loader as module:function, got an empty name in ''"),
        ({"loader": f"{LOADER}, "}, "mine", "expected --loader as module:function, got an empty name in 'my"),
        ({"loader": f"{LOADER},a:b"}, "mine", "expected one function in --loader, got my_loader_code:load, a:b: name"),
    ],
)
def test_wrong_options_are_explained(own, name, words):
    with pytest.raises(ValueError, match=words):
        OwnModels(**own).load([name], "cpu")


def test_options_change_the_preprocessing_of_a_library():
    pytest.importorskip("timm")
    (model,) = OwnModels(None, {"size": "32", "mean": "0.5"}).load(["timm:resnet10t?pretrained=0&num_classes=7"], "cpu")
    assert model.first[0].size == (32, 32) and origin(model)["name"].endswith("num_classes=7&size=32&mean=0.5")


@pytest.mark.parametrize("hold", [False, True])
def test_a_mixture_with_own_models_is_loaded_with_the_same_loader_only(tmp_path, hold):
    own = OwnModels(LOADER, {"size": "16"})
    mixed = MixedClassifier(*own.load(["mine", "other"], "cpu"), 0.5)
    mixed.save_pretrained(tmp_path / "mixed", hold=hold)
    loaded = LoadedModel.load(str(tmp_path / "mixed"), None, None, "cpu", OwnModels(LOADER))
    assert torch.equal(loaded.model(IMAGES), mixed(IMAGES))
    loaded.model.save_pretrained(tmp_path / "again")
    again = LoadedModel.load(str(tmp_path / "again"), None, None, "cpu", OwnModels(LOADER))
    assert torch.equal(again.model(IMAGES), mixed(IMAGES))
    assert loaded.facts["standard"]["weights"] == loaded_identity(mixed.standard).weights
    assert not {"build", "identity"} & loaded.facts["standard"].keys()
    with pytest.raises(ValueError, match=r"expected --size with a model of yours .* got a stored mixture"):
        LoadedModel.load(str(tmp_path / "mixed"), None, None, "cpu", own)
    with pytest.raises(ValueError, match="expected the function my_loader_code:load, which is not imported"):
        LoadedModel.load(str(tmp_path / "mixed"), None, None, "cpu")
    (tmp_path / "my_loader_code.py").write_text(CODE.replace("len(name)", "len(name) + 1"))
    del sys.modules["my_loader_code"]
    again = None if hold else "got one with other weights .* the function or the library that builds it has changed"
    if again is None:
        assert torch.equal(MixedClassifier.from_pretrained(tmp_path / "mixed", allow=[LOADER])(IMAGES), mixed(IMAGES))
    else:
        with pytest.raises(ValueError, match=again):
            MixedClassifier.from_pretrained(tmp_path / "mixed", allow=[LOADER])


def test_a_mixture_with_two_builders_is_loaded_with_both(tmp_path):
    """Each error asked for the other function alone."""
    g, h = OwnModels(LOADER).load(["mine", "other"], "cpu")
    builders = {"standard": "my_loader_code:make", "robust": "my_loader_code:make_too"}
    MixedClassifier(g, h, 0.5).save_pretrained(tmp_path / "mixed", hold=True, builders=builders)
    for one in builders.values():
        with pytest.raises(ValueError, match=r"command line --loader my_loader_code:\w+, with a comma between several"):
            LoadedModel.load(str(tmp_path / "mixed"), None, None, "cpu", OwnModels(one))
    both = OwnModels(", ".join(builders.values()))
    loaded = LoadedModel.load(str(tmp_path / "mixed"), None, None, "cpu", both)
    assert torch.equal(loaded.model.standard(IMAGES), g(IMAGES))


def test_the_misspelt_path_of_a_mixture_does_not_go_to_the_loader(tmp_path):
    (tmp_path / "made" / "mixed").mkdir(parents=True)
    (tmp_path / "made" / "mixed" / "mixture.json").write_text("{}")
    for name in ("runs/owm", "./runs/deep/owm", "made/mixd", str(tmp_path / "made" / "mixd")):
        with pytest.raises(FileNotFoundError, match=r"for --loader, got '.*', a path with nothing there: correct"):
            LoadedModel.load(name, None, None, "cpu", OwnModels(LOADER))


def test_any_other_name_goes_to_the_loader(tmp_path):
    """A name with a slash need not be a path: a loader may append .pt to it."""
    (tmp_path / "made" / "mixed").mkdir(parents=True)
    (tmp_path / "made" / "mine.bin").write_text("")
    for name in ("made/mine.bin", "made/mine", "made/mixd", "org/mine", "./mine", str(tmp_path / "no" / "mine")):
        assert LoadedModel.load(name, None, None, "cpu", OwnModels(LOADER)).facts["model"]["name"] == name


def test_two_models_and_an_alpha_are_a_mixture(tmp_path):
    options = {"depth": 10, "width": 1, "num_classes": 7}
    path = zoo.save(
        build("wide_resnet", **options).eval(), tmp_path / "z", "tiny", {"arch": "wide_resnet", "options": options}
    )
    loaded = LoadedModel.load("mine", str(path), 0.5, "cpu", OwnModels(LOADER))
    assert loaded.facts["g"]["loader"] == LOADER and loaded.facts["h"]["arch"] == "wide_resnet"
    assert loaded.short == "mine-tiny-0.5" and loaded.model(IMAGES).shape == (2, 7)


def test_a_model_may_have_more_classes_than_the_labels_of_unnamed_ones():
    """The command line refused what `ads.evaluate` accepts: images without a label of the last class."""
    models = {"m": nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))}
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    named = ImageData(images, torch.arange(6) % 3, tuple("012"), "few", torch.arange(6))
    check_classes(models, replace(named, classes_known=False))
    with pytest.raises(ValueError, match="the 3 classes of few, got m with 4"):
        check_classes(models, named)
    more = ImageData(images, torch.arange(6), tuple("012345"), "many", torch.arange(6), False)
    with pytest.raises(ValueError, match="the 6 classes of many, got m with 4"):
        check_classes(models, more)
