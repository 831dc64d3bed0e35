"""Settings are read from TOML with changes applied; unknown, missing and mistyped keys are explained."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.settings import (
    SettingsError,
    check_choice,
    check_parameters,
    errors_in_user_code,
    from_table,
    import_function,
    read_toml,
    suggestion,
    warn_user,
)
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


@pytest.mark.parametrize(
    ("value", "hint"),
    [("linaer", "did you mean 'linear'?"), ("step", "choose one of these"), (3, "choose one of these")],
)
def test_a_choice_that_does_not_exist_is_explained(value, hint):
    check_choice("schedule", "linear", ("linear", "cosine"))
    with pytest.raises(ValueError, match="schedule") as caught:
        check_choice("schedule", value, ("linear", "cosine"))
    assert str(caught.value) == f"expected schedule to be one of linear, cosine, got {value!r}: {hint}"


def test_a_suggestion_has_the_nearest_names_first():
    known = ("robust", "robust-18", "standard")
    assert suggestion("robus", known) == "did you mean 'robust'?"
    assert suggestion("robus", known, count=3) == "did you mean 'robust', 'robust-18'?"
    assert suggestion("x", known) == "choose one of robust, robust-18, standard"


@pytest.fixture
def my_code(tmp_path, monkeypatch):
    """The working folder with a package of the user."""
    (tmp_path / "my_code").mkdir()
    (tmp_path / "my_code" / "__init__.py").write_text("")
    (tmp_path / "my_code" / "models.py").write_text("SIZE = 3\ndef load_it(name): return name * SIZE\n")
    (tmp_path / "my_code" / "needs.py").write_text("import not_installed\n")
    (tmp_path / "my_code" / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    for name in [name for name in sys.modules if name.startswith("my_code")]:
        del sys.modules[name]


def test_a_function_in_the_working_folder_is_imported(my_code):
    assert import_function("my_code.models:load_it", "--loader")("ab") == "ababab"
    assert import_function("json:dumps", "--loader")([1]) == "[1]"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("my_code.models", ValueError, "--loader as module:function, got 'my_code.models': write the module, a colon"),
        (":load_it", ValueError, "--loader as module:function, got ':load_it': write"),
        ("my_code/models.py:load_it", ValueError, "write the module, a colon"),
        ("my_code.models:load(3)", ValueError, "write the module, a colon"),
        ("my_cod.models:load_it", ImportError, "expected a module 'my_cod.models' for --loader, got none: run in its"),
        ("my_code.model:load_it", ImportError, "expected a module 'my_code.model' for --loader, got none"),
        ("my_code.needs:load_it", ImportError, "got No module named 'not_installed': install what it needs"),
        ("my_code.broken:load_it", ImportError, "got ZeroDivisionError: division by zero; correct the module"),
        ("my_code.models:laod_it", ValueError, "my_code.models has no 'laod_it'; did you mean 'load_it'?"),
        ("my_code.models:SIZE", ValueError, "--loader to be a function, got 'my_code.models:SIZE', a int: name a"),
    ],
)
def test_a_function_that_cannot_be_imported_is_explained(my_code, text, kind, message):
    with pytest.raises(kind) as caught:
        import_function(text, "--loader")
    assert message in str(caught.value)


def test_an_error_in_the_code_of_the_user_names_its_line(my_code):
    Path("my_code/models.py").write_text("def load(name):\n    return int(name)\n")
    load = import_function("my_code.models:load", "--loader")
    message = r"expected a number from my_code.models:load, got ValueError in models.py, line 2: invalid literal"
    with pytest.raises(ValueError, match=message) as caught, errors_in_user_code("my_code.models:load", "a number"):
        load("x")
    (note,) = caught.value.__notes__
    assert note.startswith("Traceback of my_code.models:load:\n") and "return int(name)" in note
    assert "errors_in_user_code" not in note and __file__ not in note
    with pytest.raises(ZeroDivisionError), errors_in_user_code("my_code.models:load", "a number"):
        _ = 1 / 0  # not in the code of the user


def test_the_parameters_of_a_function_of_the_user_are_checked():
    check_parameters(lambda name, other=1: name, ["name"], "mine:load", "--loader")
    check_parameters(min, ["name"], "mine:load", "--loader")  # Python does not know its parameters
    message = r"expected a function of \(name\) for --loader, got mine:load\(\): change its parameters"
    with pytest.raises(ValueError, match=message):
        check_parameters(lambda: 1, ["name"], "mine:load", "--loader")


def test_a_warning_is_reported_at_the_line_of_the_user():
    image = torch.full((3, 8, 8), 0.3)
    with pytest.warns(UserWarning, match="were rounded") as caught:
        ads.from_dataset([(image, 0), (image, 1)], round=True)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="directly") as caught:
        warn_user("directly")
    assert caught[0].filename == __file__
