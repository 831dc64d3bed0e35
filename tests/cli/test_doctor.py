"""`doctor`: facts about the installation, and what to do about problems."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from adaptive_smoothing.cli import doctor
from adaptive_smoothing.models import download, zoo
from adaptive_smoothing.version import VERSION

OPTIONAL = doctor.OPTIONAL


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No optional packages; an installation of torchvision may be broken, which is a problem of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package": ("hf", "models named hf:NAME")})


def checks() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks()}


def test_an_installation_without_problems(run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("doctor", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["ok"] and all(check["name"] in printed.err for check in found["checks"])
    facts = {check["name"]: check["found"] for check in found["checks"]}
    assert VERSION in facts["package"] and torch.__version__ in facts["torch"] and "cpu" in facts["devices"]
    assert facts["package models"] == "compact-robust, compact-standard, compact-mixed"
    assert facts["no-such-package"] == "not installed"


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    missing = checks()["no-such-package"]
    assert missing.state == "note" and missing.advice.endswith("run pip install 'adaptive-smoothing[hf]'")


def test_a_folder_that_cannot_be_written_to_is_a_problem(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs").touch()
    assert run_main("doctor") == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "output folder" in line)
    assert line.startswith("problem") and line.endswith("pass --out with a folder that you may write to")


def test_damaged_weights_and_a_wrong_zoo_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(name: str) -> None:
        raise ValueError("expected sha256 1, got 2")

    monkeypatch.setattr(zoo, "load", damaged)
    assert checks()["package models"].state == "problem"
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(tmp_path))
    found = checks()["zoo"]
    assert found.state == "problem" and f"${zoo.ZOO_VARIABLE}" in found.found and "or unset it" in found.found


def test_the_address_of_the_zoo_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "zoo_folder", lambda: None)
    monkeypatch.setenv(download.URL_VARIABLE, "ftp://example.org/zoo")
    found = checks()["zoo"]
    assert found.state == "problem" and "ftp://example.org/zoo" in found.found
    monkeypatch.setenv(download.URL_VARIABLE, "https://example.org/zoo")
    assert checks()["zoo"].found == "fetched from https://example.org/zoo, which was not tried"


def test_every_optional_package_has_an_extra_that_installs_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package, (extra, _) in OPTIONAL.items():
        assert any(re.match(rf"{package}\b", line.replace("-", "_")) for line in extras[extra]), package


def test_a_package_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.1")
    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    found = doctor._optional("torchvision", "torchvision", "models")
    assert found.state == "problem" and "torchvision::nms" in found.found
    for package in ("timm", "transformers", "robustbench"):
        found = doctor._optional(package, package, "models")
        assert found.state == "problem" and "it imports torchvision, which fails" in found.found
    assert doctor._optional("datasets", "datasets", "data").state == "ok"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert doctor._optional("transformers", "hf", "models").state == "ok"  # without torchvision
