"""Recipes of mixing networks: mistakes, old spellings, and the default in the package."""

import tomllib
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.settings.tables import SettingsError, changed, from_table, read_toml
from adaptive_smoothing.threat import L2, Linf
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"operating_point": {"low": 1.0}}, r"low in \[0, 1\), got 1\.0"),
        ({"operating_point": {"recover": 1.0}}, r"recover in \[0, 1\), got 1\.0"),
        ({"operating_point": {"clean_accuracy": 90.0}}, r"clean_accuracy in \[0, 1\], got 90\.0"),
        ({"loss": {"balanced": True}}, r"operating_point\.clean_accuracy > 0 with loss\.balanced, got 0"),
        ({"loss": {"ce": 0.0, "bce": 0.0, "product": 0.0}}, "a loss with a positive weight"),
        ({"attack": {"setting": "Z"}}, "setting to be one of A, B, C, flip-standard, got 'Z'"),
        ({"attack": {"setting": "hostile"}}, "setting to be one of A, B, C, flip-standard, got 'hostile'"),
        ({"attack": {"unfooled": "drop"}}, "unfooled = 'keep', got 'drop': others were removed; leave it out"),
        ({"attack": {"eps": -0.1}}, r"eps of at least 0, got -0\.1"),
        ({"attack": {"norm": "L1"}}, "norm to be one of Linf, L2, got 'L1'"),
        ({"attack": {"eps_factor_min": 2.0}}, "0 <= eps_factor_min <= eps_factor_max"),
        ({"attack": {"through_robust": 1.0}}, r"through_robust in \[0, 1\)"),
        ({"mixer": {"kind": "oracle"}}, "kind to be one of network, fine-tuned-tail"),
        ({"optimizer": {"learning_rate": 1}}, "unknown key 'learning_rate'"),
        ({"dial": {"low": 0.1}, "operating_point": {"low": 0.1}}, "'operating_point' once, got it also as"),
    ],
)
def test_mistakes_are_explained(table, message):
    with pytest.raises(SettingsError, match=message):
        from_table(MixingRecipe, {"name": "x", **table})


def test_old_spellings_are_read():
    old = {
        "name": "x",
        "mixer": {"kind": "second-ending", "tail_pace": 0.2},
        "attack": {"setting": "turning", "smallest": 0.5, "largest": 0.9, "unfooled": "keep"},
        "loss": {"error": 1.0, "dialled": True},
        "dial": {"recover": 0.6, "low": 0.5},
    }
    new = {
        "name": "x",
        "mixer": {"kind": "fine-tuned-tail", "tail_lr_factor": 0.2},
        "attack": {"setting": "flip-standard", "eps_factor_min": 0.5, "eps_factor_max": 0.9},
        "loss": {"error": 1.0, "balanced": True},
        "operating_point": {"recover": 0.6, "low": 0.5},
    }
    recipe = from_table(MixingRecipe, old)
    assert recipe == from_table(MixingRecipe, new)
    assert (recipe.mixer.tail_lr_factor, recipe.attack.eps_factor_max, recipe.operating_point.low) == (0.2, 0.9, 0.5)
    assert from_table(MixingRecipe, asdict(recipe)) == recipe
    assert "unfooled" not in asdict(recipe)["attack"]


def test_changes_may_use_old_values():
    recipe = changed(default_recipe(Linf(0.1)), ["attack.setting=turning", "mixer.kind=second-ending"])
    assert recipe == default_recipe(Linf(0.1))


def test_the_default_recipe_made_the_mixture_in_the_package():
    """Apart from its name, the frequency of validation and the clean accuracy that it was trained for."""
    stored = from_table(MixingRecipe, pretrained.read(pretrained.find("compact-mixed"))["card"]["recipe"])
    found = default_recipe(stored.attack.threat, stored.name, clean_accuracy=0.9)
    assert replace(found, evaluate_every=stored.evaluate_every) == stored


def test_the_default_recipe_of_the_network_is_setting_c():
    stored = read_toml(REPOSITORY / "recipes" / "mixing-c.toml", MixingRecipe)
    found = default_recipe(stored.attack.threat, stored.name, kind="network")
    assert replace(found, evaluate_every=stored.evaluate_every) == stored


def test_the_default_recipe_has_the_threat_the_accuracy_and_the_size_that_are_asked_for():
    for kind, cutout in (("fine-tuned-tail", 16), ("network", 0)):
        recipe = default_recipe(L2(0.5), "mine", kind, clean_accuracy=0.8, size=64)
        assert (recipe.name, recipe.attack.norm, recipe.attack.eps) == ("mine", "L2", 0.5)
        assert recipe.operating_point.clean_accuracy == 0.8 and recipe.data.cutout == cutout
    with pytest.raises(ValueError, match="one radius for all images"):
        default_recipe(Linf(torch.rand(3)))


def test_the_default_recipe_is_part_of_the_wheel():
    """Hatch packs all files below src/adaptive_smoothing that git does not ignore."""
    file = resources.files("adaptive_smoothing.training.mixing") / "default.toml"
    assert from_table(MixingRecipe, tomllib.loads(file.read_text())).name == "mixing"
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build == {"packages": ["src/adaptive_smoothing"]}
    assert not any("toml" in line for line in (REPOSITORY / ".gitignore").read_text().splitlines())
