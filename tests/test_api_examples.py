"""The examples in the docstrings of public names run after the lines that the reference prints, with tiny networks."""

import doctest
import inspect
import re
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.models.architectures import build

ROOT = Path(__file__).parents[1]
SETUP = ROOT / "docs" / "reference" / "api" / "index.md"
# The version is a text, which has no docstring.
NAMES = [name for name in ads.__all__ if name != "__version__"]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def tiny(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = build("wide_resnet", depth=10, width=0.25).eval().requires_grad_(False)
    model.head.weight.mul_(30)  # confident enough to be worth mixing
    return model


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Return the names of the lines of the reference, with tiny networks and the labels that g predicts."""
    found: dict[str, Any] = {"tiny": tiny}
    text = re.search(r"```python\n(import torch\n.*?)```", SETUP.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    small = text[1].replace('ads.load_model("compact-standard")', "tiny(0)")
    small = small.replace('ads.load_model("compact-robust")', "tiny(1)")
    exec(compile(small, str(SETUP), "exec"), found)
    for data in ("data", "val"):
        labels = found["g"](found[data].floats()).argmax(1)
        found[data] = replace(found[data], labels=labels)
    return found | {"labels": found["data"].labels}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Examples write into an empty folder, and read the stored runs of this repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place := tmp_path_factory.mktemp("examples"))
        (place / "results").symlink_to(ROOT / "results")
        yield place


def examples(name: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(getattr(ads, name)) or "")


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_runs(name: str, names: dict[str, Any]):
    found = [each for each in examples(name) if doctest.SKIP not in each.options]
    assert found, f"ads.{name} lacks an example: add `Examples:` with >>> lines to its docstring"
    test = doctest.DocTest(found, {**names}, name, None, None, inspect.getdoc(getattr(ads, name)))
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of random networks
        result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
    assert result.failed == 0, "".join(printed)


def test_a_wrong_example_is_noticed(names: dict[str, Any]):
    (wrong,) = doctest.DocTestParser().get_examples(">>> mixed(images).shape\ntorch.Size([4, 11])\n")
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    assert runner.run(doctest.DocTest([wrong], {**names}, "wrong", None, None, None), out=lambda text: None).failed


@pytest.mark.parametrize("name", NAMES)
def test_public_methods_have_a_docstring(name: str):
    """What torch calls (`forward`, `extra_repr`, `train`) does what the documentation of torch says."""
    thing = getattr(ads, name)
    if not inspect.isclass(thing):
        return
    own = [cls for cls in thing.__mro__ if cls.__module__.startswith("adaptive_smoothing")]
    members = {key: value for cls in reversed(own) for key, value in vars(cls).items() if not key.startswith("_")}
    for key, value in members.items():
        is_method = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        if is_method and key not in ("forward", "extra_repr", "train"):
            assert inspect.getdoc(getattr(thing, key)), f"{name}.{key} needs a docstring"


def test_every_public_name_can_be_imported_from_where_the_reference_looks():
    for name in NAMES:
        module, _, original = ads._PLACES[name].partition(":")
        assert getattr(import_module(f"adaptive_smoothing.{module}"), original) is getattr(ads, name)
