"""The examples run unchanged, in this process, which has imported torch already."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs an example and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_quickstart(run):
    printed = run("quickstart.py", "2")
    assert "90 % clean accuracy on 20 validation images" in printed
    assert printed.count("PGD-20") == 3 and "g      clean" in printed


def test_own_models(run):
    printed = run("own_models.py")
    assert "logits (4, 5)" in printed and "largest L2 perturbation 0.50" in printed


def test_other_attacks(run):
    printed = run("other_attacks.py", "2")
    lines = [line for line in printed.splitlines() if line.startswith(("torchattacks", "foolbox", "art", "pyauto"))]
    assert len(lines) == 4
    assert all("robust" in line or "is not installed" in line for line in lines)
