"""The examples run unchanged."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_quickstart():
    printed = run("quickstart.py", "2")
    assert "90 % clean accuracy on 20 validation images" in printed
    assert printed.count("PGD-20") == 3 and "g      clean" in printed


def test_own_models():
    printed = run("own_models.py")
    assert "logits (4, 5)" in printed and "largest L2 perturbation 0.50" in printed


def test_other_attacks():
    printed = run("other_attacks.py", "2")
    lines = [line for line in printed.splitlines() if line.startswith(("torchattacks", "foolbox", "art", "pyauto"))]
    assert len(lines) == 4
    assert all("robust" in line or "is not installed" in line for line in lines)
