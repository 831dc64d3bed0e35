"""A mixture that is saved and loaded has the same logits, also at another alpha, and a card that describes it."""

import copy
import functools
import json
import os
import shutil

import pytest
import torch
from torch import nn

from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.models.identity import Identity
from adaptive_smoothing.models.resnet import Normalize
from adaptive_smoothing.tuning.curves import at_setting

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = {"width": 4, "num_classes": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A zoo with the base classifiers `tiny-g` and `tiny-h`."""
    folder = tmp_path_factory.mktemp("zoo")
    for seed, name in enumerate(("tiny-g", "tiny-h")):
        torch.manual_seed(seed)
        model = build("preact_resnet18", **OPTIONS).eval()
        zoo.save(model, folder, name, {"arch": "preact_resnet18", "options": OPTIONS})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(zoo.ZOO_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="module")
def g(folder):
    return zoo.load("tiny-g")


@pytest.fixture(scope="module")
def h(folder):
    return zoo.load("tiny-h")


def as_stored(mixer: nn.Module) -> nn.Module:
    """Round the weights to half precision, in which they are stored."""
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.half())
    return mixer.requires_grad_(False)


@pytest.fixture(scope="module")
def mixtures(g, h) -> dict[str, MixedClassifier]:
    torch.manual_seed(0)
    network, tail = MixingNetwork.between(g, h, width=4), FineTunedTail.of(h, hidden=16)
    nn.init.normal_(tail.scorer[-1].weight, std=0.5)
    as_stored(network)
    as_stored(tail)
    numbers = {"standard_scale": 3.0, "alpha_scale": 2.0, "alpha_shift": 0.1, "alpha_range": (0.5, 0.9)}
    wide = Nonlinear(h, scale=5.0, power=3.0, shift=-0.5)
    return {
        "fixed": MixedClassifier(g, h, 0.85, standard_scale=3.0),
        "nonlinear": MixedClassifier(Hardmax(g), wide, 0.9),
        "network": MixedClassifier(g, h, network, **numbers),
        "tail": MixedClassifier(g, h, tail, **numbers),
        "hardmax": MixedClassifier(Hardmax(g), h, tail, **numbers),
        "one alpha": MixedClassifier(g, wide, tail, **numbers | {"alpha_range": (0.9, 0.9)}),
    }


@pytest.mark.parametrize("kind", ["fixed", "nonlinear", "network", "tail", "hardmax", "one alpha"])
@pytest.mark.parametrize("hold", [False, True])
def test_a_loaded_mixture_has_the_same_logits_at_every_setting(tmp_path, mixtures, kind, hold):
    mixed = mixtures[kind]
    mixed.save_pretrained(tmp_path, hold=hold, card={"clean": 0.9})
    loaded = MixedClassifier.from_pretrained(tmp_path)
    logits = mixed(IMAGES)
    assert torch.equal(loaded(IMAGES), logits)
    setting = -1.0 if mixed.learns_alpha else 0.6
    moved, expected = (at_setting(model, setting).with_scales(2.0, 1.0)(IMAGES) for model in (loaded, mixed))
    assert torch.equal(moved, expected) and not torch.equal(moved, logits)
    assert pretrained.read(tmp_path)["card"] == {"clean": 0.9} and not loaded.training
    assert (tmp_path / "standard.safetensors").exists() == hold
    assert all(not parameter.requires_grad for parameter in loaded.parameters())


def test_a_folder_may_be_any_path(tmp_path, mixtures):
    (tmp_path / "mixture").mkdir()
    with os.scandir(tmp_path) as found:
        (folder,) = found
    mixtures["fixed"].save_pretrained(folder)
    assert torch.equal(MixedClassifier.from_pretrained(folder)(IMAGES), mixtures["fixed"](IMAGES))


@pytest.mark.parametrize(("hold", "precision"), [(False, "fp16"), (True, "full precision")])
def test_a_mixer_is_held_in_full_precision(tmp_path, g, h, hold, precision):
    torch.manual_seed(0)
    network = MixingNetwork.between(g, h, width=4).requires_grad_(False)
    MixedClassifier(g, h, network).save_pretrained(tmp_path, hold=hold)
    loaded = MixedClassifier.from_pretrained(tmp_path).alpha.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items()) == hold
    assert f"MB, weights in {precision} |" in (tmp_path / "mixture.md").read_text()


@pytest.mark.parametrize(("new", "old"), [("fine-tuned-tail", "second-ending"), ("fine-tuned-tail", "fine-tuned-tail")])
def test_both_names_of_a_fine_tuned_tail_are_read(tmp_path, mixtures, new, old):
    mixtures["tail"].save_pretrained(tmp_path)
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    assert description["alpha"]["kind"] == new
    description["alpha"]["kind"] = old
    (tmp_path / pretrained.FILE).write_text(json.dumps(description))
    assert pretrained.read(tmp_path)["alpha"]["kind"] == new
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path)(IMAGES), mixtures["tail"](IMAGES))


def test_a_mixer_of_an_unknown_kind_is_refused(tmp_path, mixtures):
    mixtures["network"].save_pretrained(tmp_path)
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    description["alpha"]["kind"] = "newer"
    (tmp_path / pretrained.FILE).write_text(json.dumps(description))
    with pytest.raises(ValueError, match="kind of the mixer to be one of network, fine-tuned-tail, got 'newer'"):
        MixedClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["fixed", "tail"])
def test_a_card_keeps_the_recipe_and_loses_the_figures_of_another_setting(tmp_path, mixtures, h, kind):
    known = {"recipe": "ours", "figures": {"val": {"clean": 0.9}}, "wanted": {"clean_accuracy": 0.9}}
    mixtures[kind].save_pretrained(tmp_path / "first", card=known)
    loaded = MixedClassifier.from_pretrained(tmp_path / "first")
    for name, view, expected in (
        ("unchanged", loaded, known),
        ("at another setting", at_setting(loaded, 0.5), {"recipe": "ours"}),
        ("another g", loaded.with_standard(h), {}),
    ):
        view.save_pretrained(tmp_path / name)
        assert pretrained.read(tmp_path / name)["card"] == expected


@pytest.mark.parametrize(
    ("kind", "hold", "parts"),
    [
        ("fixed", False, ["which all images share one alpha.", "| alpha | 0.85 |", "tiny-h, sha256 `"]),
        ("fixed", True, ["standard.safetensors, in this folder"]),
        ("nonlinear", False, ["the robust one is transformed", "nonlinear of tiny-h, sha256 `"]),
        ("network", False, ["its own alpha", "a mixing network on", "mixer.safetensors`, ", "(0.5, 0.9)"]),
        (
            "one alpha",
            False,
            ["one alpha, and the robust one is transformed", "| alpha | 0.9, with a fine-tuned copy of"],
        ),
        (
            "tail",
            False,
            ["chosen by a fine-tuned copy of", "2.0 minutes on a GPU, code 1", "| val | 50 | 90.00 % | – |"],
        ),
    ],
)
def test_the_markdown_card(tmp_path, mixtures, kind, hold, parts):
    facts = {"seconds": 120, "device": "a GPU", "adaptive-smoothing": "1"}
    facts["figures"] = {"val": {"images": 50, "clean": 0.9}, "test": {"images": 9, "clean": 0.8, "adaptive": 0.5}}
    mixtures[kind].save_pretrained(tmp_path / "mine", hold=hold, card=facts)
    text = (tmp_path / "mine" / "mixture.md").read_text()
    assert text.startswith("# mine\n") and all(part in text for part in parts)


@pytest.mark.parametrize(
    "facts",
    [
        {"recipe": "recipes/mixing.toml", "seconds": "3 minutes", "train_images": "45,000"},
        {"recipe": {"name": "mine"}, "figures": {"test": 0.9}},
        {"figures": {}, "device": 3},
    ],
)
def test_a_card_may_hold_anything(tmp_path, mixtures, facts):
    mixtures["fixed"].save_pretrained(tmp_path, card=facts)
    assert pretrained.read(tmp_path)["card"] == facts and "one alpha" in (tmp_path / "mixture.md").read_text()


def test_a_mixture_is_not_a_model(folder, mixtures):
    mixtures["fixed"].save_pretrained(folder / "mine")
    with pytest.raises(ValueError, match=r"got 'mine', a mixture: ads.MixedClassifier.from_pretrained\('mine'\)"):
        zoo.load("mine")


def test_base_classifiers_are_named_with_their_sha256(tmp_path, mixtures):
    mixtures["fixed"].save_pretrained(tmp_path)
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    expected = {"name": "tiny-h", "sha256": zoo.find_card("tiny-h").sha256}
    identity = Identity.from_json(description["robust"].pop("identity"))
    assert description["robust"] == expected and identity == Identity.of(mixtures["fixed"].robust)
    description["robust"]["sha256"] = "0" * 64
    (tmp_path / pretrained.FILE).write_text(json.dumps(description))
    with pytest.raises(ValueError, match="expected tiny-h with sha256 000000000000 as the robust classifier, got"):
        MixedClassifier.from_pretrained(tmp_path)


def test_a_named_base_classifier_can_be_given_but_no_other(tmp_path, mixtures, g, h):
    mixtures["tail"].save_pretrained(tmp_path)
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=zoo.load("tiny-g"), robust=h)
    assert torch.equal(loaded(IMAGES), mixtures["tail"](IMAGES))
    moved = copy.deepcopy(h)
    with torch.no_grad():
        moved.head.bias.add_(0.5)
    for other in (g, moved):
        with pytest.raises(ValueError, match=r"expected the robust classifier .* other weights .*: mix others with"):
            MixedClassifier.from_pretrained(tmp_path, robust=other)


@pytest.mark.filterwarnings("ignore:the logits of the")  # images of 8 x 8
def test_a_users_modules_are_passed_again(tmp_path, linear):
    other = copy.deepcopy(linear)
    with torch.no_grad():
        other.linear.bias.add_(1)
    images = torch.rand(2, 3, 8, 8)
    mixed = MixedClassifier(linear, other, 0.5)
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pass standard=\.\.\. the module it was saved with"):
        MixedClassifier.from_pretrained(tmp_path)
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=other)
    assert torch.equal(loaded(images), mixed(images))
    with pytest.raises(
        ValueError, match="expected the robust classifier this mixture was saved with, got one with other"
    ):
        MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=linear)


@pytest.mark.filterwarnings("ignore:the logits of the")  # images of 8 x 8
def test_the_normalisation_of_a_users_module_is_part_of_its_identity(tmp_path, linear):
    """It is a buffer that the state_dict lacks. Files of older versions have a digest without it."""
    one, other = (nn.Sequential(Normalize((mean,) * 3, (1.0,) * 3), linear).eval() for mean in (0.0, 0.5))
    MixedClassifier(linear, one, 0.5).save_pretrained(tmp_path)
    MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=one)
    expected = r"got one with mean \(0.5, 0.5, 0.5\) instead of \(0, 0, 0\): mix others"
    with pytest.raises(ValueError, match=expected):
        MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=other)
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    for only in (True, False):
        description["robust"] = {"weights": weights_digest(one, persistent_only=only)}
        (tmp_path / pretrained.FILE).write_text(json.dumps(description))
        MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=one)
    with pytest.raises(ValueError, match="got one with other weights: mix others"):
        MixedClassifier.from_pretrained(tmp_path, standard=linear, robust=other)


def test_a_base_classifier_that_was_trained_further_is_not_the_stored_one(tmp_path, g):
    moved = zoo.load("tiny-h")
    assert zoo.is_as_stored(moved, Identity.of(moved))
    with torch.no_grad():
        moved.head.bias.add_(0.5)
    mixed = MixedClassifier(g, moved, 0.5)
    with pytest.warns(UserWarning, match="tiny-h does not give the present weights .* of the robust classifier"):
        mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has the identity only"):
        MixedClassifier.from_pretrained(tmp_path)
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path, robust=moved)(IMAGES), mixed(IMAGES))


@pytest.mark.filterwarnings("ignore:the logits of the")  # the replaced layer does not fit
@pytest.mark.parametrize("layer", [nn.Identity(), nn.Sequential(nn.BatchNorm2d(32), nn.Identity())])
def test_a_base_classifier_with_a_replaced_layer_is_not_the_stored_one(tmp_path, g, layer):
    changed = zoo.load("tiny-h")
    changed.norm = layer.eval()
    assert not zoo.is_as_stored(changed, Identity.of(changed))
    with pytest.warns(UserWarning, match="tiny-h does not give"):
        MixedClassifier(g, changed, 0.5).save_pretrained(tmp_path)
    assert "name" not in pretrained.read(tmp_path)["robust"]


def test_the_same_file_under_another_name_can_be_given(tmp_path, folder, mixtures):
    mixtures["fixed"].save_pretrained(tmp_path)
    loaded = MixedClassifier.from_pretrained(tmp_path, robust=zoo.load(folder / "tiny-h.safetensors"))
    assert torch.equal(loaded(IMAGES), mixtures["fixed"](IMAGES))


def test_alphas_that_cannot_be_saved(tmp_path, g, h):
    with pytest.raises(ValueError, match="one alpha for all images, got one per image"):
        MixedClassifier(g, h, torch.rand(4)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="as alpha, got a Sequential"):
        MixedClassifier(g, h, nn.Sequential(nn.Flatten(), nn.Linear(3072, 1)).eval()).save_pretrained(tmp_path)


def test_damaged_folders_and_other_formats(tmp_path, mixtures):
    with pytest.raises(FileNotFoundError, match=r"expected a folder with mixture.json"):
        MixedClassifier.from_pretrained(tmp_path)
    assert not pretrained.exists(tmp_path)
    mixtures["network"].save_pretrained(tmp_path)
    weights = tmp_path / pretrained.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="damaged or replaced"):
        MixedClassifier.from_pretrained(tmp_path)
    (tmp_path / pretrained.FILE).write_text('{"format": 99}')
    with pytest.raises(ValueError, match="a mixture of format 1"):
        MixedClassifier.from_pretrained(tmp_path)
    (tmp_path / pretrained.FILE).write_text("{")
    with pytest.raises(ValueError, match="expected JSON in"):
        MixedClassifier.from_pretrained(tmp_path)


def test_a_mixture_of_the_zoo_is_found_by_name(folder, mixtures):
    mixtures["fixed"].save_pretrained(folder / "by-name")
    assert MixedClassifier.from_pretrained("by-name").alpha.item() == pytest.approx(0.85)


def test_a_mixture_of_the_zoo_is_fetched_with_its_base_classifiers(folder, mixtures, tmp_path, publish, monkeypatch):
    published = shutil.copytree(folder, tmp_path / "published")
    mixtures["network"].save_pretrained(published / "far-mixed")
    publish(published)
    monkeypatch.delenv(zoo.ZOO_VARIABLE)
    monkeypatch.setattr(zoo, "zoo_folder", lambda: None)
    assert pretrained.exists("far-mixed")
    loaded = MixedClassifier.from_pretrained("far-mixed")
    assert torch.equal(loaded(IMAGES), mixtures["network"](IMAGES))
    fetched = {path.relative_to(tmp_path / "cache").as_posix() for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert fetched == {"zoo/far-mixed/mixer.safetensors", "zoo/tiny-g.safetensors", "zoo/tiny-h.safetensors"}
    assert MixedClassifier.from_pretrained("far-mixed").alpha.options == loaded.alpha.options


def test_an_unknown_mixture_suggests_models_and_mixtures(folder, mixtures):
    mixtures["fixed"].save_pretrained(folder / "by-name")
    with pytest.raises(FileNotFoundError, match=r"got 'by-nam': did you mean 'by-name'\? \(the zoo is "):
        MixedClassifier.from_pretrained("by-nam")
    with pytest.raises(ValueError, match=r"got 'by-nam': did you mean 'by-name'\?"):
        LoadedModel.load("by-nam", None, None, "cpu")
    with pytest.raises(FileNotFoundError, match=r"got 'tiny-g', a model: ads.load_model\('tiny-g'\)"):
        MixedClassifier.from_pretrained("tiny-g")


@pytest.mark.parametrize(
    ("key", "value"), [("standard", None), ("robust", "tiny-h"), ("alpha", [0.5]), ("numbers", None), ("card", 3)]
)
def test_a_damaged_description_is_explained(tmp_path, mixtures, key, value):
    mixtures["fixed"].save_pretrained(tmp_path)
    content = json.loads((tmp_path / pretrained.FILE).read_text())
    (tmp_path / pretrained.FILE).write_text(json.dumps(content | {key: value}))
    with pytest.raises(ValueError, match=f"expected '{key}' of a mixture in .*mixture.json, got .*: it was damaged or"):
        MixedClassifier.from_pretrained(tmp_path)


def test_a_mixture_with_a_kind_of_mixer_that_is_missing_is_not_a_model(tmp_path, mixtures):
    mixtures["fixed"].save_pretrained(tmp_path)
    content = json.loads((tmp_path / pretrained.FILE).read_text())
    (tmp_path / pretrained.FILE).write_text(json.dumps(content | {"alpha": {}}))
    with pytest.raises(ValueError, match=r"a mixture: ads.MixedClassifier.from_pretrained\("):
        zoo.load(tmp_path)


def test_options_that_a_mixer_does_not_have_are_explained(tmp_path, mixtures):
    mixtures["network"].save_pretrained(tmp_path)
    content = json.loads((tmp_path / pretrained.FILE).read_text())
    content["alpha"]["options"]["height"] = 3
    (tmp_path / pretrained.FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"expected 'alpha.options' of a mixture .*'height'.*: it was damaged"):
        MixedClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (
            "standard.build.options.num_classes",
            "x",
            "expected options in the file that build preact_resnet18, got Type",
        ),
        ("standard.build.options.activation", [], "expected options in the file that build preact_resnet18, got TypeE"),
        ("standard.build.options.width", -1, "expected options in the file that build preact_resnet18, got RuntimeE"),
        ("standard.build.options.mean", [None], "expected options in the file that build preact_resnet18, got Runtime"),
        (
            "alpha.options.standard_taps",
            [None, "stage2"],
            "expected 'alpha.options' .*got expected taps as names of la",
        ),
        ("alpha.options.robust_taps", 5, "expected 'alpha.options' of a mixture"),
        ("alpha.options.width", "x", "expected 'alpha.options' of a mixture"),
    ],
)
def test_options_with_wrong_values_are_explained(tmp_path, mixtures, place, value, words):
    mixtures["network"].save_pretrained(tmp_path, hold=True)
    content = json.loads((tmp_path / pretrained.FILE).read_text())
    *keys, last = place.split(".")
    functools.reduce(dict.get, keys, content)[last] = value
    (tmp_path / pretrained.FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"(?s){words}.*damaged or written by hand"):
        MixedClassifier.from_pretrained(tmp_path)
