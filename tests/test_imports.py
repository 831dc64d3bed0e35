"""Imports between layers go down only, and no optional package is needed to import the library."""

import re
import subprocess
import sys
from pathlib import Path

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


def test_names_in_messages_and_documents_are_public():
    """`ads.NAME` in an error message, a docstring or a document must exist; the log may name what was removed."""
    documents = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")]
    texts = {path: path.read_text(encoding="utf-8") for path in [*documents, *(ROOT / "src").rglob("*.py")]}
    named = {(path.name, name) for path, text in texts.items() for name in re.findall(r"\bads\.([A-Za-z]\w*)", text)}
    assert {name for _, name in named} >= {"evaluate", "MixedClassifier"}
    assert not {(file, name) for file, name in named if name not in ads.__all__}
    assert 25 <= len(ads.__all__) <= 32 and all(hasattr(ads, name) for name in ads.__all__)
