"""Settings are read from TOML; mistakes are explained."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from adaptive_smoothing.settings.tables import SettingsError, from_table, read_toml
from adaptive_smoothing.training.recipe import Recipe

MINIMAL = {"name": "x", "model": {"arch": "wide_resnet"}}


def test_fractions_and_changes(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('name = "x"\n[model]\narch = "wide_resnet"\n[method]\nname = "at"\neps = "8/255"\n')
    changes = ["optimizer.epochs=3", "method.eps=4/255", "method.name=trades", "model.options.depth=16"]
    recipe = read_toml(path, Recipe, changes)
    assert recipe.method.eps == 4 / 255 and recipe.optimizer.epochs == 3
    assert recipe.method.name == "trades" and recipe.model.options == {"depth": 16}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"nmae": "x", "model": {"arch": "a"}}, "unknown key 'nmae'; did you mean 'name'"),
        (MINIMAL | {"zzz": 1}, "unknown key 'zzz'; choose one of name, "),
        ({"name": "x"}, "missing key 'model'"),
        (MINIMAL | {"optimizer": {"epoch": 3}}, "did you mean 'epochs'"),
        (MINIMAL | {"optimizer": {"epochs": "many"}}, "expected int"),
        (MINIMAL | {"optimizer": {"epochs": True}}, "expected int"),
        (MINIMAL | {"method": {"eps": "eight"}}, "8/255"),
        (MINIMAL | {"method": {"name": "madry"}}, "one of standard, at"),
        (MINIMAL | {"optimizer": {"schedule": "flat"}}, "one of linear, cosine"),
        (MINIMAL | {"optimizer": {"warmup": 2.0}}, "share of the steps"),
    ],
)
def test_mistakes_are_explained(table, message):
    with pytest.raises(SettingsError, match=message):
        from_table(Recipe, table)


def test_the_error_of_a_missing_file_lists_others(tmp_path):
    (tmp_path / "there.toml").write_text("")
    with pytest.raises(SettingsError, match=r"there\.toml"):
        read_toml(tmp_path / "gone.toml", Recipe)


def test_broken_toml_and_broken_changes(tmp_path):
    (tmp_path / "r.toml").write_text("name = ")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_toml(tmp_path / "r.toml", Recipe)
    (tmp_path / "r.toml").write_text('name = "x"\nmodel.arch = "wide_resnet"\n')
    with pytest.raises(SettingsError, match=r"optimizer\.epochs=3"):
        read_toml(tmp_path / "r.toml", Recipe, ["epochs"])


@dataclass(frozen=True)
class Renamed:
    """Settings of which some were renamed and one was removed."""

    OLD_KEYS: ClassVar = {"old": "new"}
    OLD_VALUES: ClassVar = {"new": {"crimson": "red"}}
    RETIRED: ClassVar = {"gone": 1}

    new: str = "blue"


@pytest.mark.parametrize("table", [{"new": "red"}, {"old": "red"}, {"old": "crimson"}, {"new": "crimson", "gone": 1}])
def test_old_names_are_read(table):
    assert from_table(Renamed, table) == Renamed("red")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"gone": 2}, "expected gone = 1, got 2: others were removed; leave it out"),
        ({"new": "red", "old": "red"}, "expected 'new' once, got it also as 'old', its old name: leave one out"),
    ],
)
def test_removed_values_and_double_names_are_refused(table, message):
    with pytest.raises(SettingsError, match=message):
        from_table(Renamed, table)
