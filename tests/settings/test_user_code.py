"""Functions of the user are imported by name, checked, and their errors name the line."""

import sys
from pathlib import Path

import pytest

from adaptive_smoothing.settings.user_code import check_parameters, errors_in_user_code, import_function


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
    Path("my_code/again.py").write_text("from my_code.models import load\n")
    load = import_function("my_code.again:load", "--loader")
    with pytest.raises(ValueError, match="got ValueError in models"), errors_in_user_code("my_code.again:load", "1"):
        load("x")
    with pytest.raises(ZeroDivisionError), errors_in_user_code("my_code.models:load", "a number"):
        _ = 1 / 0  # not in the code of the user


def test_the_parameters_of_a_function_of_the_user_are_checked():
    check_parameters(lambda name, other=1: name, ["name"], "mine:load", "--loader")
    check_parameters(min, ["name"], "mine:load", "--loader")  # Python does not know its parameters
    message = r"expected a function of \(name\) for --loader, got mine:load\(\): change its parameters"
    with pytest.raises(ValueError, match=message):
        check_parameters(lambda: 1, ["name"], "mine:load", "--loader")
