"""Imports between layers go down only, and no optional package is needed to import the library."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import VERBS

ROOT = Path(__file__).parent.parent
OPTIONAL = [
    "timm",
    "torchvision",
    "transformers",
    "robustbench",
    "tensorboard",
    "huggingface_hub",
    "datasets",
    "pydantic",
]


def test_imports_go_down_only():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr


def test_optional_packages_are_not_needed():
    """One process blocks all of them; its error names the import that fails."""
    verbs = ", ".join(f"adaptive_smoothing.cli.{verb}" for verb in ("main", *VERBS))
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import adaptive_smoothing, {verbs}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_public_names_are_imported_when_they_are_used():
    code = (
        "import sys, adaptive_smoothing as ads; assert 'torch' not in sys.modules; "
        "assert set(ads.__all__) <= set(dir(ads)); from adaptive_smoothing import *; "
        "assert Linf is ads.Linf and callable(evaluate) and 'torch' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_three_lists_of_public_names_agree():
    """The imports for type checkers, the places they are imported from at run time, and `__all__`."""
    tree = ast.parse(Path(ads.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {
        alias.asname or alias.name: f"{statement.module.removeprefix('adaptive_smoothing.')}:{alias.name}"
        for statement in block.body
        for alias in statement.names
    }
    assert imported == ads._PLACES and sorted(imported) == sorted(set(ads.__all__) - {"__version__"})


def test_a_misspelt_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        ads.evalute  # noqa: B018


def test_names_in_messages_and_documents_are_public():
    """`ads.NAME` in an error message, a docstring or a document must exist; the log may name what was removed."""
    documents = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")]
    texts = {path: path.read_text(encoding="utf-8") for path in [*documents, *(ROOT / "src").rglob("*.py")]}
    named = {(path.name, name) for path, text in texts.items() for name in re.findall(r"\bads\.([A-Za-z]\w*)", text)}
    assert {name for _, name in named} >= {"evaluate", "MixedClassifier"}
    assert not {(file, name) for file, name in named if name not in ads.__all__}
    assert 25 <= len(ads.__all__) <= 35 and all(hasattr(ads, name) for name in ads.__all__)
