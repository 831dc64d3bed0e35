"""Recipes: those of the repository are read, stored ones come back unchanged, and impossible numbers are refused."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from adaptive_smoothing.models import zoo
from adaptive_smoothing.settings.tables import SettingsError, from_table, read_toml
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.recipe import CommonRecipe, Recipe

MINIMAL = {"name": "x", "model": {"arch": "wide_resnet"}}
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def kind(path: Path) -> type[CommonRecipe]:
    return MixingRecipe if "mixing" in path.stem else Recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_reads_and_is_named_after_its_file(path):
    assert read_toml(path, kind(path)).name == path.stem


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_comes_back_from_its_card(path):
    recipe = read_toml(path, kind(path))
    assert from_table(kind(path), json.loads(json.dumps(asdict(recipe)))) == recipe


def test_schedules_warm_up_and_end_at_zero():
    for schedule in ("linear", "cosine"):
        recipe = from_table(Recipe, MINIMAL | {"optimizer": {"schedule": schedule, "warmup": 0.1}})
        factors = [recipe.lr_factor(step, 100) for step in range(101)]
        assert factors[0] == pytest.approx(0.1) and factors[9] == factors[10] == 1 and factors[100] == pytest.approx(0)
        assert all(a >= b for a, b in pairwise(factors[10:]))
    assert recipe.lr_factor(55, 100) == pytest.approx(0.5)


def test_stored_models_were_made_by_the_recipes_in_the_repository():
    stored = {name: card.card["recipe"] for name, card in zoo.names().items() if "recipe" in card.card}
    assert {"compact-standard", "compact-robust"} <= stored.keys()
    for name, table in stored.items():
        recipe = read_toml(RECIPES[0].parent / f"{name}.toml", Recipe)
        assert from_table(Recipe, table) == recipe, name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every of at least 1"),
        ({"name": "../x"}, "it names files"),
        ({"optimizer": {"epochs": 0}}, "epochs of at least 1"),
        ({"optimizer": {"batch_size": 0}}, "batch_size of at least 1"),
        ({"optimizer": {"ema": 1.0}}, r"decay in \[0, 1\)"),
        ({"method": {"steps": 0}}, "steps of at least 1"),
        ({"method": {"name": "at", "attack_loss": "hinge"}}, "attack_loss to be one of cross-entropy, kl, margin"),
        ({"method": {"name": "at", "attack_loss": "kl"}}, "attack_loss kl with trades, hat, dajat only"),
        ({"method": {"beta": -1.0}}, "beta of at least 0"),
        ({"optimizer": {"lr": -0.1}}, "lr of at least 0"),
    ],
)
def test_impossible_numbers_are_refused(table, message):
    with pytest.raises(SettingsError, match=message):
        from_table(Recipe, MINIMAL | table)


def test_the_default_attack_step_follows_the_threat():
    method = from_table(Recipe, MINIMAL | {"method": {"name": "at"}}).method
    assert method.attack_step == pytest.approx(2 / 255)
    wide = from_table(Recipe, MINIMAL | {"method": {"name": "at", "norm": "L2", "eps": 0.5, "steps": 5}}).method
    assert wide.attack_step == pytest.approx(0.25)


@pytest.mark.parametrize(("method", "policy"), [("dajat", ""), ("trades", "autoaugment")])
def test_a_second_stream_needs_its_method_and_its_policy(method, policy):
    table = {**MINIMAL, "method": {"name": method}, "data": {"second_policy": policy}}
    with pytest.raises(SettingsError, match=r"expected data\.second_policy with the method dajat and only with it"):
        from_table(Recipe, table)
    with pytest.raises(SettingsError, match="expected no second stream for a mixer"):
        from_table(MixingRecipe, {"name": "x", "data": {"second_policy": "autoaugment"}})
