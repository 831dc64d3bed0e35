"""Imports between layers go down only, and no optional package is needed to import the library."""

import subprocess
import sys
from pathlib import Path

from adaptive_smoothing.cli.main import VERBS

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
    root = Path(__file__).parent.parent
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", root / "pyproject.toml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root / "src")
    assert result.returncode == 0, result.stdout + result.stderr


def test_optional_packages_are_not_needed():
    """One process blocks all of them; its error names the import that fails."""
    verbs = ", ".join(f"adaptive_smoothing.cli.{verb}" for verb in ("main", *VERBS))
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import adaptive_smoothing, {verbs}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_public_names_exist():
    import adaptive_smoothing as ads

    assert all(hasattr(ads, name) for name in ads.__all__)
