"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_quickstart():
    said = run("quickstart.py", "4")
    assert "90 % clean accuracy on 40 validation images" in said
    assert said.count("PGD-20") == 3 and "g      clean" in said


def test_own_models():
    said = run("own_models.py")
    assert "logits (4, 5)" in said and "largest L2 perturbation 0.50" in said
