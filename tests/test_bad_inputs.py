"""Every bad input gets an error of this package that says what was expected and what was given."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bad_inputs.py"
PAGE = Path(__file__).parents[1] / "docs" / "bad-inputs.md"


@pytest.fixture(scope="module")
def bad_inputs():
    spec = importlib.util.spec_from_file_location("benchmarks.bad_inputs", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


def test_every_bad_input_is_answered_with_an_error_of_this_package(bad_inputs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", sys.path.copy())  # the working folder is added to it
    for name in ("robustbench", "robustbench.utils"):
        monkeypatch.setitem(sys.modules, name, None)  # replaced by a stand-in, and restored afterwards
    found = bad_inputs.answers()
    assert len(found) >= 60
    failures = {each.typed: f"{each.failure}: {each.text}" for each in found if each.failure}
    assert not failures


def test_the_page_has_every_bad_input(bad_inputs):
    """The answers themselves depend on the machine, for example on the devices that it has."""
    page = PAGE.read_text(encoding="utf-8")
    tried = [(kind, line) for kind, _, line in bad_inputs._inputs()]
    lines = [f"adaptive-smoothing {line}" if kind == "commands" else line for kind, line in tried]
    missing = [line for line in lines if f"| `{bad_inputs._cell(line)}` |" not in page]
    assert not missing, "python benchmarks/bad_inputs.py writes the page"


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        ("int('x')", "a raw ValueError from <string>"),
        ("torch.zeros(2) @ torch.zeros(3)", "a raw RuntimeError from <string>"),
        ("ads.Linf(8)", ""),
        ("1 + 1", "no error"),
    ],
)
def test_errors_of_others_and_missing_errors_are_failures(bad_inputs, raised, failure):
    names = {"ads": bad_inputs.ads, "torch": bad_inputs.torch}
    assert bad_inputs._answer("Models", raised, names).failure == failure
