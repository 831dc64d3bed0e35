"""Mixtures as folders: what is saved is what is loaded, to the last bit of its logits, and can be dialled again."""

import copy
import json
from functools import partial

import pytest
import torch
from torch import nn

from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models import zoo
from adaptive_smoothing.tuning.curves import at_setting

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
EXACT, CLOSE = {"rtol": 0.0, "atol": 0.0}, {"rtol": 1e-2, "atol": 1e-2}
G, H = (zoo.load(name) for name in ("compact-standard", "compact-robust"))


def as_stored(mixer: nn.Module) -> nn.Module:
    """Weights are stored in half precision: those that it can hold are compared."""
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.half())
    return mixer.requires_grad_(False)


def mixtures() -> dict[str, MixedClassifier]:
    torch.manual_seed(0)
    network, ending = (
        as_stored(mixer) for mixer in (MixingNetwork.between(G, H, width=8), FineTunedTail.of(H, hidden=16))
    )
    nn.init.normal_(ending.scorer[-1].weight, std=0.5)
    as_stored(ending)
    numbers = {"standard_scale": 3.0, "alpha_scale": 2.0, "alpha_shift": 0.1, "alpha_range": (0.5, 0.9)}
    return {
        "fixed": MixedClassifier(G, H, 0.85, standard_scale=3.0),
        "nonlinear": MixedClassifier(Hardmax(G), Nonlinear(H, scale=5.0, power=3.0, shift=-0.5), 0.9),
        "network": MixedClassifier(G, H, network, **numbers),
        "second ending": MixedClassifier(G, H, ending, **numbers),
        "hardened": MixedClassifier(Hardmax(G), H, ending, **numbers),
        "shared alpha": MixedClassifier(
            G, Nonlinear(H, scale=5.0, power=3.0, shift=-0.5), ending, **numbers | {"alpha_range": (0.9, 0.9)}
        ),
    }


@pytest.mark.parametrize("kind", ["fixed", "nonlinear", "network", "second ending", "hardened", "shared alpha"])
@pytest.mark.parametrize("hold", [False, True])
def test_saved_loaded_and_dialled_again(tmp_path, kind, hold):
    mixed = mixtures()[kind]
    mixed.save_pretrained(tmp_path, hold=hold, card={"clean": 0.9})
    loaded = MixedClassifier.from_pretrained(tmp_path)
    same = partial(torch.testing.assert_close, **CLOSE if hold else EXACT)  # held weights are in fp16
    same(loaded(IMAGES), mixed(IMAGES))
    setting = -1.0 if mixed.learns_alpha else 0.6
    again = [at_setting(model, setting).with_scales(2.0, 1.0) for model in (mixed, loaded)]
    assert not torch.equal(again[0](IMAGES), mixed(IMAGES))
    same(again[1](IMAGES), again[0](IMAGES))
    assert pretrained.read(tmp_path)["card"] == {"clean": 0.9} and not loaded.training
    assert (tmp_path / "standard.safetensors").exists() == hold
    assert all(not parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("kind", ["fixed", "second ending"])
def test_what_is_known_of_a_mixture_outlives_its_dial(tmp_path, kind):
    """How it was trained stays true; what it was measured to be does not."""
    known = {"recipe": "ours", "figures": {"val": {"clean": 0.9}}, "wanted": {"clean_accuracy": 0.9}}
    mixtures()[kind].save_pretrained(tmp_path / "first", card=known)
    loaded = MixedClassifier.from_pretrained(tmp_path / "first")
    for name, view, expected in (
        ("as it is", loaded, known),
        ("turned", at_setting(loaded, 0.5), {"recipe": "ours"}),
        ("another g", loaded.with_standard(H), {}),
    ):
        view.save_pretrained(tmp_path / name)
        assert pretrained.read(tmp_path / name)["card"] == expected


@pytest.mark.parametrize(
    ("kind", "hold", "said"),
    [
        ("fixed", False, ["which all images share one alpha.", "| alpha | 0.85 |", "compact-robust, sha256 `"]),
        ("fixed", True, ["standard.safetensors, in this folder"]),
        ("nonlinear", False, ["the robust one is transformed", "nonlinear of compact-robust, sha256 `"]),
        ("network", False, ["its own alpha", "a mixing network on", "mixer.safetensors`, ", "(0.5, 0.9)"]),
        (
            "shared alpha",
            False,
            ["one alpha, and the robust one is transformed", "| alpha | 0.9; beside it a second ending"],
        ),
        (
            "second ending",
            False,
            ["read off a second ending of", "2.0 minutes on a GPU, code 1", "| val | 50 | 90.00 % | – |"],
        ),
    ],
)
def test_a_card_for_people(tmp_path, kind, hold, said):
    facts = {"seconds": 120, "device": "a GPU", "adaptive-smoothing": "1"}
    facts["figures"] = {"val": {"images": 50, "clean": 0.9}, "test": {"images": 9, "clean": 0.8, "adaptive": 0.5}}
    mixtures()[kind].save_pretrained(tmp_path / "mine", hold=hold, card=facts)
    text = (tmp_path / "mine" / "mixture.md").read_text()
    assert text.startswith("# mine\n") and all(part in text for part in said)


@pytest.mark.parametrize(
    "facts",
    [
        {"recipe": "recipes/mixing.toml", "seconds": "3 minutes", "train_images": "45,000"},
        {"recipe": {"name": "mine"}, "figures": {"test": 0.9}},
        {"figures": {}, "device": 3},
    ],
)
def test_a_card_may_say_anything(tmp_path, facts):
    mixtures()["fixed"].save_pretrained(tmp_path, card=facts)
    assert pretrained.read(tmp_path)["card"] == facts and "one alpha" in (tmp_path / "mixture.md").read_text()


def test_a_mixture_is_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "zoo_folder", lambda: tmp_path)
    (tmp_path / "manifest.json").write_text('{"models": {}}')
    mixtures()["fixed"].save_pretrained(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"got 'mine', a mixture: ads.MixedClassifier.from_pretrained\('mine'\)"):
        zoo.load("mine")


def test_bases_are_named_with_their_sums(tmp_path):
    mixtures()["fixed"].save_pretrained(tmp_path)
    description = json.loads((tmp_path / pretrained.FILE).read_text())
    assert description["robust"] == {"name": "compact-robust", "sha256": zoo.find_card("compact-robust").sha256}
    description["robust"]["sha256"] = "0" * 64
    (tmp_path / pretrained.FILE).write_text(json.dumps(description))
    with pytest.raises(
        ValueError, match="expected compact-robust with sha256 000000000000 as the robust classifier, got"
    ):
        MixedClassifier.from_pretrained(tmp_path)


def test_a_named_base_can_be_given_but_no_other(tmp_path):
    mixtures()["second ending"].save_pretrained(tmp_path)
    loaded = MixedClassifier.from_pretrained(tmp_path, standard=zoo.load("compact-standard"), robust=H)
    assert torch.equal(loaded(IMAGES), MixedClassifier.from_pretrained(tmp_path)(IMAGES))
    moved = copy.deepcopy(H)
    with torch.no_grad():
        moved.head.bias.add_(0.5)
    for other in (G, moved):
        with pytest.raises(ValueError, match=r"expected the robust classifier .* other weights: mix others with"):
            MixedClassifier.from_pretrained(tmp_path, robust=other)


def test_modules_of_ones_own_are_given_again(tmp_path, linear):
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
    with pytest.raises(ValueError, match="architectures of this package to hold, got a LinearClassifier"):
        mixed.save_pretrained(tmp_path / "held", hold=True)


def test_a_base_that_was_trained_on_is_not_taken_for_the_stored_one(tmp_path):
    moved = zoo.load("compact-robust")
    assert zoo.is_as_stored(moved)
    with torch.no_grad():
        moved.head.bias.add_(0.5)
    mixed = MixedClassifier(G, moved, 0.5)
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="knows by the sum of its weights only"):
        MixedClassifier.from_pretrained(tmp_path)
    assert torch.equal(MixedClassifier.from_pretrained(tmp_path, robust=moved)(IMAGES), mixed(IMAGES))


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="one alpha for all images, got one per image"):
        MixedClassifier(G, H, torch.rand(4)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="as alpha, got a Sequential"):
        MixedClassifier(G, H, nn.Sequential(nn.Flatten(), nn.Linear(3072, 1)).eval()).save_pretrained(tmp_path)


def test_damaged_and_foreign_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a folder with mixture.json"):
        MixedClassifier.from_pretrained(tmp_path)
    assert not pretrained.exists(tmp_path)
    mixtures()["network"].save_pretrained(tmp_path)
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


def test_a_mixture_of_the_zoo_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_text('{"models": {}}')
    mixtures()["fixed"].save_pretrained(tmp_path / "mine")
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(tmp_path))
    assert MixedClassifier.from_pretrained("mine").alpha.item() == pytest.approx(0.85)
