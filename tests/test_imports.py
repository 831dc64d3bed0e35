"""The house's shape: imports go down only, and nothing optional is needed to import it."""

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ["timm", "torchvision", "transformers", "robustbench", "tensorboard", "huggingface_hub", "pydantic"]


def test_imports_go_down_only():
    root = Path(__file__).parent.parent
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", root / "pyproject.toml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root / "src")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("absent", OPTIONAL)
def test_optional_parts_are_not_needed(absent):
    verbs = ", ".join(f"adaptive_smoothing.cli.{verb}" for verb in ("main", "demo", "sweep", "train", "models"))
    code = f"import sys; sys.modules[{absent!r}] = None; import adaptive_smoothing, {verbs}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_exist():
    import adaptive_smoothing as ads

    assert all(hasattr(ads, name) for name in ads.__all__)
