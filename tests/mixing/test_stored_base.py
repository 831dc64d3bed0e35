"""A base classifier of any kind is restored exactly, or refused with the difference; nothing is imported unasked."""

import copy
import errno
import functools
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models import weight_files, zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.digest import model_digest

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TIMM = "timm:resnet10t?pretrained=0&num_classes=7&size=32"
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


class Network(nn.Module):
    """A user's network with shared weights, a buffer that a state_dict lacks, and a structured output."""

    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.one.weight
        self.head = nn.Linear(8, classes)
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.norm(self.conv(images)).relu().mean((2, 3))
        return {"scores": self.factor * self.head(self.other(self.one(features)))}


def make_network() -> nn.Module:
    return Network()


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the model with other weights and statistics, as after training, in full precision."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in [*model.parameters(), *(each for each in model.buffers() if each.is_floating_point())]:
            tensor.add_(0.05 * torch.rand(tensor.shape))
    return model.eval()


def own(seed: int = 0, **options: object) -> nn.Module:
    torch.manual_seed(seed)
    network = trained(Network(), seed)
    return ads.wrap(network, **{"mean": MEAN, "std": STD, "size": 32, "output": "scores", **options})


@pytest.fixture
def mixed() -> MixedClassifier:
    return MixedClassifier(own(0), own(1), 0.6)


# --- known by name and digest


@pytest.fixture
def timm_model() -> nn.Module:
    pytest.importorskip("timm")
    return zoo.load(TIMM)


def test_random_weights_are_not_stored_by_name(tmp_path, timm_model):
    mixed = MixedClassifier(timm_model, own(), 0.5)
    with pytest.warns(
        UserWarning, match=r"timm:resnet10t.* does not give .* save with hold=True .--hold., or pass standard="
    ):
        mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has the identity only"):
        MixedClassifier.from_pretrained(tmp_path, robust=mixed.robust)
    again = MixedClassifier.from_pretrained(tmp_path, standard=timm_model, robust=mixed.robust)
    assert torch.equal(again(IMAGES), mixed(IMAGES))


def test_a_model_of_a_library_that_was_trained_further_is_never_replaced(tmp_path, timm_model):
    """The case of the issue: the folder had the name only, and loading it returned other logits."""
    path = tmp_path / "weights.safetensors"
    save_file(timm_model.model.state_dict(), path)
    name = f"{TIMM}&checkpoint={path}"
    g = zoo.load(name)
    MixedClassifier(g, own(), 0.5).save_pretrained(tmp_path / "same")
    assert pretrained.read(tmp_path / "same")["standard"]["name"] == name
    loaded = MixedClassifier.from_pretrained(tmp_path / "same", robust=own())
    assert torch.equal(loaded.standard(IMAGES), g(IMAGES))
    MixedClassifier(g, g, 0.5).save_pretrained(tmp_path / "held", hold=True)
    assert str(path) not in (tmp_path / "held" / pretrained.FILE).read_text()  # weights that are held need no path
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path / "held").standard(IMAGES), g(IMAGES))
    with torch.no_grad():
        g.model.fc.weight.add_(0.01)
    with pytest.warns(UserWarning, match="has its identity only"):
        MixedClassifier(g, own(), 0.5).save_pretrained(tmp_path / "tuned")
    with pytest.raises(ValueError, match=r"pass standard=\.\.\."):
        MixedClassifier.from_pretrained(tmp_path / "tuned", robust=own())
    save_file(g.model.state_dict(), path)
    with pytest.raises(
        ValueError, match=r"standard classifier .* other weights .*: timm:resnet10t.* now has other weights"
    ):
        MixedClassifier.from_pretrained(tmp_path / "same", robust=own())


def test_a_zoo_model_with_another_normalisation_is_not_the_stored_one(tmp_path, monkeypatch):
    zoo.save(
        build("wide_resnet", depth=10, width=1).eval(),
        tmp_path,
        "tiny",
        {"arch": "wide_resnet", "options": {"depth": 10, "width": 1}},
    )
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(tmp_path))
    g, h = zoo.load("tiny"), zoo.load("tiny")
    g.normalize.mean.fill_(0.5)
    with pytest.warns(UserWarning, match="tiny does not give the present weights and preprocessing of the standard"):
        MixedClassifier(g, h, 0.5).save_pretrained(tmp_path / "mixed")
    stored = pretrained.read(tmp_path / "mixed")
    assert "name" not in stored["standard"] and stored["robust"]["name"] == "tiny"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean": 0.5}, r"mean \(0.5, 0.5, 0.5\) instead of \(0.4, 0.5, 0.6\)"),
        ({"std": 0.3}, r"std \(0.3, 0.3, 0.3\) instead of \(0.2, 0.25, 0.3\)"),
        ({"size": 64}, "size 64 instead of 32"),
        ({"seed": 3}, "other weights"),
    ],
)
def test_the_same_network_with_another_preprocessing_is_refused(tmp_path, mixed, change, words):
    """The case of the issue: it was accepted."""
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"expected the robust classifier .*, got one with {words}.*: mix others"):
        MixedClassifier.from_pretrained(tmp_path, standard=own(0), robust=own(**{"seed": 1, **change}))
    again = MixedClassifier.from_pretrained(tmp_path, standard=own(0), robust=own(1))
    assert torch.equal(again(IMAGES), mixed(IMAGES))


def test_a_library_that_returns_another_model_for_a_stored_name_is_refused(tmp_path, monkeypatch):
    from adaptive_smoothing.models import third_party

    pretrained_seed = 0

    def network(name, options, is_pretrained):
        return nn.Sequential(own(pretrained_seed).model, Scores()).eval(), {"mean": 0.5, "std": 0.5}

    monkeypatch.setitem(third_party.SOURCES, "timm", third_party.Library(network, third_party.SOURCES["timm"].options))
    MixedClassifier(zoo.load("timm:any"), own(), 0.5).save_pretrained(tmp_path)
    MixedClassifier.from_pretrained(tmp_path, robust=own())
    pretrained_seed = 1
    with pytest.raises(ValueError, match=r"got one with other weights .*: timm:any now has other weights"):
        MixedClassifier.from_pretrained(tmp_path, robust=own())
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    del description["standard"]["identity"]
    (tmp_path / pretrained.FILE).write_text(json.dumps(description))
    with pytest.warns(UserWarning, match="stored by an older version, without the identity of timm:any"):
        MixedClassifier.from_pretrained(tmp_path, robust=own())


class Scores(nn.Module):
    def forward(self, output: dict[str, torch.Tensor]) -> torch.Tensor:
        return output["scores"]


# --- held weights


@pytest.mark.parametrize("transform", [lambda g: g, Hardmax, lambda g: Nonlinear(g, scale=2.0, power=1.5, shift=0.1)])
def test_own_modules_are_held_exactly(tmp_path, mixed, transform):
    mixed = MixedClassifier(mixed.standard, transform(mixed.robust), 0.6)
    mixed.save_pretrained(tmp_path / "a", hold=True, builders={"standard": make_network, "robust": Network})
    shutil.move(tmp_path / "a", tmp_path / "b")
    loaded = MixedClassifier.from_pretrained(tmp_path / "b", standard=make_network, robust=Network)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    assert not loaded.training and not any(weight.requires_grad for weight in loaded.parameters())
    assert loaded.standard.model.one.weight.dtype == torch.float32
    loaded.save_pretrained(tmp_path / "c", hold=True, builders={"standard": make_network, "robust": make_network})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("place", ["same", "other"])
def test_a_held_mixture_that_is_saved_again_stays_complete(tmp_path, mixed, place):
    """As after `ads.tune`: the base classifiers have no name, and no builder is passed again."""
    builders = {"standard": make_network, "robust": make_network}
    mixed.save_pretrained(tmp_path / "same", hold=True, builders=builders)
    loaded = MixedClassifier.from_pretrained(tmp_path / "same", standard=make_network, robust=make_network)
    loaded.with_alpha(0.2).save_pretrained(tmp_path / place)
    again = MixedClassifier.from_pretrained(tmp_path / place, standard=make_network, robust=make_network)
    assert torch.equal(again(IMAGES), mixed.with_alpha(0.2)(IMAGES))


def test_a_folder_that_was_moved_holds_the_same_model(tmp_path, mixed):
    """An interrupted evaluation continues, because its digest does not contain a path."""
    builders, digests = {"standard": make_network, "robust": make_network}, []
    mixed.save_pretrained(tmp_path / "a", hold=True, builders=builders)
    for name in ("a", "b"):
        digests.append(model_digest(MixedClassifier.from_pretrained(tmp_path / name, **builders)))
        if name == "a":
            shutil.move(tmp_path / "a", tmp_path / "b")
    assert digests[0] == digests[1] == model_digest(mixed)


def test_a_held_mixture_that_was_trained_further_is_held_again_with_its_builder(tmp_path, mixed):
    builders = {"standard": make_network, "robust": make_network}
    mixed.save_pretrained(tmp_path / "held", hold=True, builders=builders)
    loaded = MixedClassifier.from_pretrained(tmp_path / "held", standard=make_network, robust=make_network)
    with torch.no_grad():
        loaded.standard.model.head.bias.add_(0.1)
    with pytest.warns(UserWarning, match=r"does not give the present weights .* save with hold=True"):
        loaded.save_pretrained(tmp_path / "new")
    loaded.save_pretrained(tmp_path / "new", hold=True, builders=builders)
    again = MixedClassifier.from_pretrained(tmp_path / "new", standard=make_network, robust=make_network)
    assert torch.equal(again(IMAGES), loaded(IMAGES))


def test_less_than_the_folder_had_is_a_warning(tmp_path, mixed):
    builders = {"standard": make_network, "robust": make_network}
    mixed.save_pretrained(tmp_path, hold=True, builders=builders)
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=own(0), robust=make_network)
    with pytest.warns(UserWarning, match="had the weights of the standard classifier, and now has its identity only"):
        loaded.save_pretrained(tmp_path)
    assert (tmp_path / "standard.safetensors").is_file()  # nothing is removed


def test_a_mixer_stays_exact_next_to_held_weights(tmp_path):
    torch.manual_seed(0)
    g, h = build("wide_resnet", depth=10, width=1).eval(), build("wide_resnet", depth=10, width=1).eval()
    mixed = MixedClassifier(g, h, ads.MixingNetwork.between(g, h)).eval()
    builders = {role: functools.partial(build, "wide_resnet", depth=10, width=1) for role in ("standard", "robust")}
    mixed.save_pretrained(tmp_path, hold=True, builders=builders)
    MixedClassifier.from_pretrained(tmp_path, **builders).save_pretrained(tmp_path)
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path, **builders)(IMAGES), mixed(IMAGES))


def test_held_modules_can_be_given_as_modules(tmp_path, mixed):
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": make_network})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=own(0), robust=make_network)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))


def test_a_folder_cannot_name_weights_elsewhere(tmp_path, mixed):
    mixed.save_pretrained(tmp_path / "a", hold=True, builders={"standard": make_network, "robust": make_network})
    (tmp_path / "a" / "standard.safetensors").rename(tmp_path / "elsewhere.safetensors")
    file = tmp_path / "a" / pretrained.FILE
    text = file.read_text()
    for name in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors")):
        file.write_text(text.replace("standard.safetensors", name))
        with pytest.raises(ValueError, match="a folder may not name other files of this machine"):
            MixedClassifier.from_pretrained(tmp_path / "a", standard=make_network, robust=make_network)


@pytest.mark.parametrize(
    "cast", [lambda model: model.double(), lambda model: model.to(memory_format=torch.channels_last)]
)
def test_dtypes_and_layouts_are_held(tmp_path, mixed, cast):
    mixed = cast(mixed)
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": make_network})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=make_network, robust=make_network)
    images = IMAGES.to(mixed.standard.model.head.weight.dtype)
    assert loaded(images).dtype == images.dtype and torch.allclose(loaded(images), mixed(images), atol=1e-6)


def test_functions_are_imported_only_if_the_user_allows_them(tmp_path, mixed, monkeypatch):
    code = "from torch import nn\nprint('imported')\ndef make(): raise RuntimeError('called')\n"
    (tmp_path / "their_code.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    name = f"{__name__}:make_network"
    monkeypatch.setitem(sys.modules, __name__, sys.modules[make_network.__module__])
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": name, "robust": name})
    loaded = MixedClassifier.from_pretrained(tmp_path, allow=[name])
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    file = tmp_path / pretrained.FILE
    file.write_text(file.read_text().replace(name, "their_code:make"))
    for options in ({}, {"allow": [name]}, {"standard": make_network}):
        with pytest.raises(ValueError, match=r"expected the function their_code:make, which is not imported because"):
            MixedClassifier.from_pretrained(tmp_path, **options)
    assert "their_code" not in sys.modules


def test_a_name_that_is_allowed_is_not_a_pattern(tmp_path, mixed, monkeypatch):
    """A string was searched, so that it allowed each of its parts."""
    name = f"{__name__}:make_network"
    monkeypatch.setitem(sys.modules, __name__, sys.modules[make_network.__module__])
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": name, "robust": name})
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path, allow=name)(IMAGES), mixed(IMAGES))
    with pytest.raises(ValueError, match="which is not imported because a file names it"):
        MixedClassifier.from_pretrained(tmp_path, allow=f"my.{name}_2")
    for allow in (True, [make_network]):
        with pytest.raises(TypeError, match=r"expected allow as names module:function, got .*: name each function"):
            MixedClassifier.from_pretrained(tmp_path, allow=allow)


def test_a_module_without_a_builder_cannot_be_held(tmp_path, mixed):
    with pytest.raises(
        ValueError, match="know how to build a Network again, got a module without a name: pass builders="
    ):
        mixed.save_pretrained(tmp_path, hold=True)
    with pytest.raises(ValueError, match="hold=True with builders=, got hold=False"):
        mixed.save_pretrained(tmp_path, builders={"standard": make_network})
    with pytest.raises(ValueError, match="a key of builders to be one of standard, robust, got 'standrad'"):
        mixed.save_pretrained(tmp_path, hold=True, builders={"standrad": make_network})
    assert not (tmp_path / pretrained.FILE).exists()


def test_a_failed_save_keeps_the_mixture_that_was_there(tmp_path, mixed):
    builders = {"standard": make_network, "robust": make_network}
    mixed.save_pretrained(tmp_path, hold=True, builders=builders)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = MixedClassifier(own(2), own(3), 0.5)
    with pytest.raises(ValueError, match="know how to build"):
        other.save_pretrained(tmp_path, hold=True, builders={"standard": make_network})
    with pytest.raises(TypeError, match=r"in a JSON file, got <object .*: convert it"):
        other.save_pretrained(tmp_path, hold=True, builders=builders, card={"clean": object()})
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def other_code() -> nn.Module:
    network = Network()
    network.norm.eps = 10.0
    return network


class Broken(Network):
    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        raise RuntimeError("this accepts no image")


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (
            lambda: Network(classes=5),
            r"a network with model.head.bias of shape \(7,\), got one with .* of shape \(5,\): build the network that",
        ),
        (lambda: nn.Linear(3, 2), r"expected a network without model.bias, got one with model.bias of shape \(2,\)"),
        (
            lambda classes: Network(classes),
            r"a function of \(\) for the network, got .*:.*\(classes\): change its parameters, or write a function",
        ),
        (lambda: make_network, "expected a network from .*, got function: return a torch.nn.Module"),
        (other_code, "build the standard classifier again, got one with the same weights but logits that differ"),
        (Broken, r"got one with the same weights but no finite logits for images of shape \(3, 32, 32\): it does not"),
    ],
)
def test_a_builder_of_another_network_is_refused(tmp_path, mixed, builder, words):
    with pytest.raises(ValueError, match=words):
        mixed.save_pretrained(tmp_path / "new", hold=True, builders={"standard": builder, "robust": make_network})
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": make_network})
    with pytest.raises(ValueError, match=words.replace("build the standard classifier again,", "")):
        MixedClassifier.from_pretrained(tmp_path, standard=builder, robust=make_network)


class OfSize64(Network):
    """A network that declares a shape, and with `smooth` another last activation."""

    def __init__(self, smooth: bool = False) -> None:
        super().__init__()
        self.shape, self.smooth = (3, 64, 64), smooth

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores = super().forward(images)["scores"]
        return nn.functional.gelu(scores) if self.smooth else scores


def test_the_shape_that_a_module_declares_does_not_replace_that_of_the_stored_logits(tmp_path):
    network, smooth = trained(OfSize64()), functools.partial(OfSize64, smooth=True)
    network.shape = (3, 32, 32)
    mixed = MixedClassifier(network, own(1), 0.5)
    with pytest.raises(ValueError, match="build the standard classifier again, got one with the same weights but log"):
        mixed.save_pretrained(tmp_path, hold=True, builders={"standard": smooth, "robust": Network})
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": OfSize64, "robust": Network})
    network.shape = (3, 64, 64)
    for given in (OfSize64, network):
        loaded = MixedClassifier.from_pretrained(tmp_path, standard=given, robust=Network)
        assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    network.smooth = True
    for given in (smooth, network):
        with pytest.raises(ValueError, match="got one with the same weights but logits that differ by"):
            MixedClassifier.from_pretrained(tmp_path, standard=given, robust=Network)


class Prior(Network):
    """A network with a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.prior, self.temperature = torch.zeros(7), 1.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images)["scores"] / self.temperature + self.prior


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("prior", torch.eye(7)[6], "another value of model.prior, .* only its parameters and buffers are stored"),
        ("temperature", 1.0001, "the same weights but logits that differ by 0.01 %"),
    ],
)
def test_state_that_no_file_holds_is_refused(tmp_path, name, value, words):
    network = trained(Prior())
    mixed = MixedClassifier(ads.wrap(network), own(1), 0.5)
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": Prior, "robust": make_network})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=Prior, robust=make_network)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    setattr(network, name, value)
    with pytest.raises(ValueError, match=f"expected to build the standard classifier again, got one with {words}"):
        mixed.save_pretrained(tmp_path, hold=True, builders={"standard": Prior, "robust": make_network})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_that_to_leaves_on_the_cpu_does_not_hide_other_code(tmp_path):
    network = trained(Prior()).cuda()
    network.prior = network.prior.cuda()
    mixed = MixedClassifier(ads.wrap(network), own(1).cuda(), 0.5)
    builders = {"standard": Prior, "robust": make_network}
    mixed.save_pretrained(tmp_path, hold=True, builders=builders)
    MixedClassifier.from_pretrained(tmp_path, **builders)
    network.temperature = 1.01
    with pytest.raises(ValueError, match="got one with the same weights but logits that differ by 1 %"):
        mixed.save_pretrained(tmp_path, hold=True, builders=builders)


class OnGpu(Network):
    """A network whose code runs on a GPU only."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images)["scores"] + torch.zeros(7, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_that_runs_on_a_gpu_only_is_held(tmp_path):
    mixed = MixedClassifier(ads.wrap(trained(OnGpu()).cuda()), own(1).cuda(), 0.5)
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": OnGpu, "robust": make_network})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=OnGpu, robust=make_network, device="cuda")
    assert torch.allclose(loaded(IMAGES.cuda()), mixed(IMAGES.cuda()), atol=1e-5)


class Maker:
    def __call__(self) -> nn.Module:
        return Network()


@pytest.mark.parametrize("builder", [functools.partial(Network, 7), Maker(), lambda: Network(), Network])
def test_builders_of_every_kind(tmp_path, mixed, builder):
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": builder, "robust": builder})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=builder, robust=builder)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    with pytest.raises(ValueError, match="which is not imported because a file names it: pass the function") as error:
        MixedClassifier.from_pretrained(tmp_path)
    assert ("allow=" in str(error.value)) == (builder is Network)  # the others cannot be imported


@pytest.mark.parametrize(
    ("builders", "words"),
    [
        ({"standard": Network()}, "expected a builder as a function or module:function, got Network: pass a function"),
        ({"standard": 5}, "expected a builder as a function or module:function, got int: pass a function"),
        ([make_network, make_network], 'expected builders as {"standard": make_g}, got list: pass a dictionary'),
    ],
)
def test_what_is_not_a_builder_is_refused(tmp_path, mixed, builders, words):
    with pytest.raises(TypeError, match=words):
        mixed.save_pretrained(tmp_path, hold=True, builders=builders)


def test_functions_can_be_passed_by_name(tmp_path, mixed, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_networks", sys.modules[make_network.__module__])
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": make_network})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard="my_networks:make_network", robust=make_network)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    with pytest.raises(ValueError, match="expected standard= as module:function, got 'make_network': write the module"):
        MixedClassifier.from_pretrained(tmp_path, standard="make_network", robust=make_network)
    with pytest.raises(TypeError, match=r"expected standard= as a module, .* got int: pass one of these"):
        MixedClassifier.from_pretrained(tmp_path, standard=5, robust=make_network)


class Harder(Hardmax):
    pass


def test_a_transform_of_the_user_is_stored_as_a_module(tmp_path, mixed):
    mixed = MixedClassifier(Harder(mixed.standard), mixed.robust, 0.6)
    mixed.save_pretrained(tmp_path)
    assert pretrained.read(tmp_path)["standard"]["type"] == "Harder"
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=Harder(own(0)), robust=own(1))
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    with pytest.raises(ValueError, match="expected the standard classifier this mixture was saved with, got one with"):
        MixedClassifier.from_pretrained(tmp_path, standard=Hardmax(own(2)), robust=own(1))


def test_networks_of_libraries_are_held_without_their_weights(tmp_path, timm_model):
    pytest.importorskip("torchvision")
    g, h = trained(timm_model), trained(zoo.load("torchvision:squeezenet1_1?pretrained=0&num_classes=7&size=64"))
    mixed = MixedClassifier(g, h, 0.4)
    mixed.save_pretrained(tmp_path / "a", hold=True)
    assert pretrained.read(tmp_path / "a")["standard"]["build"]["of"] == {"library": TIMM}
    loaded = MixedClassifier.from_pretrained(tmp_path / "a")
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    loaded.save_pretrained(tmp_path / "b", hold=True)
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path / "b")(IMAGES), mixed(IMAGES))


def test_a_network_that_timm_made_is_held_by_its_name(tmp_path):
    timm = pytest.importorskip("timm")
    g = ads.wrap(timm.create_model("resnet10t", num_classes=7), mean=MEAN, std=STD, size=32)
    h = ads.wrap(own(), size=48)
    mixed = MixedClassifier(g, h, 0.4)
    builders = {"standard": "timm:resnet10t?num_classes=7", "robust": make_network}
    mixed.save_pretrained(tmp_path, hold=True, builders=builders)
    loaded = MixedClassifier.from_pretrained(tmp_path, robust=make_network)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))


def test_an_architecture_of_this_package_is_held_in_full_precision(tmp_path, monkeypatch):
    options = {"depth": 10, "width": 1, "num_classes": 7, "mean": [0.5] * 3}
    zoo.save(build("wide_resnet", **options).eval(), tmp_path, "tiny", {"arch": "wide_resnet", "options": options})
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(tmp_path))
    mixed = MixedClassifier(trained(zoo.load("tiny")), zoo.load("tiny"), 0.5)
    mixed.save_pretrained(tmp_path / "held", hold=True)
    monkeypatch.delenv(zoo.ZOO_VARIABLE)
    loaded = MixedClassifier.from_pretrained(tmp_path / "held")
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    (tmp_path / "held" / "standard.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected weights at .*standard.safetensors, got no file"):
        MixedClassifier.from_pretrained(tmp_path / "held")


def test_a_damaged_or_exchanged_file_is_refused(tmp_path, mixed):
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": make_network})
    shutil.copy(tmp_path / "robust.safetensors", tmp_path / "standard.safetensors")
    with pytest.raises(ValueError, match=r"expected sha256 .* damaged or replaced"):
        MixedClassifier.from_pretrained(tmp_path, standard=make_network, robust=make_network)


def test_what_no_file_holds_is_refused(tmp_path):
    by_function = own(output=lambda output: output["scores"])
    with pytest.raises(ValueError, match="as a name or an index, got a function, which no file holds"):
        MixedClassifier(by_function, own(), 0.5).save_pretrained(
            tmp_path, hold=True, builders={"standard": make_network, "robust": make_network}
        )
    cropped = own()
    cropped.first.append(nn.ZeroPad2d(1))
    with pytest.raises(ValueError, match=r"first layers made by ads.wrap, got a ZeroPad2d: put it into a module"):
        MixedClassifier(cropped, own(), 0.5).save_pretrained(
            tmp_path, hold=True, builders={"standard": make_network, "robust": make_network}
        )


def test_a_smoothed_classifier_is_held_with_its_noise(tmp_path):
    def smoothed(sigma: float = 0.1) -> nn.Module:
        return ads.SmoothedClassifier(ads.wrap(Network().eval(), output="scores"), sigma, samples=4)

    h = trained(smoothed())
    builders = {"standard": make_network, "robust": make_network}
    with pytest.raises(ValueError, match=r"expected a network .*: build the whole SmoothedClassifier that was saved"):
        MixedClassifier(own(), h, 0.5).save_pretrained(tmp_path, hold=True, builders=builders)
    mixed = MixedClassifier(own(), h, 0.5)
    mixed.save_pretrained(tmp_path, hold=True, builders={"standard": make_network, "robust": smoothed})
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=make_network, robust=smoothed)
    assert torch.equal(loaded(IMAGES), mixed(IMAGES))
    with pytest.raises(ValueError, match=r"got one with sigma 0.5 instead of 0.1: the function or the library"):
        MixedClassifier.from_pretrained(tmp_path, standard=make_network, robust=lambda: smoothed(0.5))


def test_a_copy_of_a_loaded_model_keeps_its_name(tmp_path, monkeypatch):
    options = {"depth": 10, "width": 1}
    zoo.save(build("wide_resnet", **options).eval(), tmp_path, "tiny", {"arch": "wide_resnet", "options": options})
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(tmp_path))
    g = copy.deepcopy(zoo.load("tiny")).double()
    MixedClassifier(g, g, 0.5).save_pretrained(tmp_path / "mixed")
    assert pretrained.read(tmp_path / "mixed")["standard"]["name"] == "tiny"


# --- places


def test_a_file_in_the_place_of_the_folder(tmp_path, mixed):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ValueError, match=r"expected a folder for the mixture, got .*, a file: choose another path"):
            mixed.save_pretrained(path)


def test_a_folder_that_cannot_be_written_to_is_explained(tmp_path, mixed, monkeypatch):
    with pytest.raises(OSError, match=r"expected a folder that can be written to, got /proc/x .*: choose another path"):
        mixed.save_pretrained("/proc/x")

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_files, "write_bytes", full)
    builders = {"standard": make_network, "robust": make_network}
    with pytest.raises(OSError, match=r"no space is left for .*mixed: free some space, or choose another path"):
        mixed.save_pretrained(tmp_path / "mixed", hold=True, builders=builders)
    assert not list((tmp_path / "mixed").iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "gpu"])
def test_a_device_that_is_not_there(tmp_path, mixed, device):
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"expected a device of this machine, got '{device}': .*; try 'cpu'"):
        MixedClassifier.from_pretrained(tmp_path, device=device)
    with pytest.raises(ValueError, match=f"expected a device of this machine, got '{device}'"):
        zoo.load("compact-robust", device=device)
