import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo

OPTIONS = {"depth": 10, "width": 0.25}
pytestmark = pytest.mark.usefixtures("package")


def printed(columns: int = 120) -> str:
    return CliRunner().invoke(app, ["models"], catch_exceptions=False, env={"COLUMNS": str(columns)}).output


def row(name: str, columns: int = 120) -> list[str]:
    """Return the cells of the row of a model or a mixture."""
    return re.split(
        " {2,}", next(line for line in printed(columns).splitlines() if line.strip().startswith(name)).strip()
    )


def test_models_are_listed_with_the_accuracies_on_their_cards() -> None:
    assert "compact-standard" in printed() and "93.12 %" in printed() and "50.00 %" in printed()


def test_mixtures_are_listed_also_if_they_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    MixedClassifier(g, h, FineTunedTail.of(h)).save_pretrained(tmp_path / "mixed")
    monkeypatch.setattr(zoo, "zoo_folder", lambda: tmp_path)
    assert "Mixtures" in printed() and "mixed" in printed() and "fine-tuned tail" in printed()
    (tmp_path / "mixed/mixture.json").write_text('{"format": 99}')
    assert "mixed" in printed() and "cannot be read" in printed()


def test_what_is_not_here_is_listed_with_its_figures(tmp_path: Path, weights: Path, publish: Callable) -> None:
    published = shutil.copytree(weights, tmp_path / "published")
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    zoo.save(
        g,
        published,
        "far",
        {"figures": {"test": {"clean": 0.625, "pgd20": 0.25}}, "arch": "wide_resnet", "options": OPTIONS},
    )
    facts = {"figures": {"val": {"clean": 0.75}, "test": {"adaptive": 0.125}}}
    MixedClassifier(g, h, 0.5).save_pretrained(published / "far-mixed", card=facts)
    publish(published)
    size = (published / "far.safetensors").stat().st_size / 1e6
    assert row("far ") == ["far", "not here", f"{size:.1f} MB to fetch", "–", "62.50 %", "25.00 %"]
    assert row("far-mixed") == ["far-mixed", "not here", "0.0 MB to fetch", "–", "75.00 %", "12.50 %"]
    assert row(demo.STANDARD)[1] == "package"
    stored = json.loads(CliRunner().invoke(app, ["models", "--json", "--quiet"], catch_exceptions=False).stdout)
    found = {each["name"]: each for each in stored["models"] + stored["mixtures"]}
    assert found["far"]["from"] == found["far-mixed"]["from"] == "not here"
    assert found["far"]["bytes"] > size * 1e6 and found["far"]["figures"]["test"]["clean"] == 0.625
    assert found[demo.STANDARD]["from"] == "package"
    assert "not here: fetched when used, from $ADAPTIVE_SMOOTHING_ZOO_URL (file:///" in " ".join(printed(500).split())
    zoo.load("far")
    zoo.find_mixture("far-mixed")
    assert row("far ")[1] == row("far-mixed")[1] == "cache"


def test_a_narrow_screen_has_the_names_and_accuracies_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "zoo_folder", lambda: None)
    assert max(len(line.rstrip()) for line in printed(60).splitlines()) <= 60
    assert row(demo.STANDARD, columns=60)[-2:] == ["93.12 %", "0.00 %"]
    assert row("resnet18-mixed", columns=60) == ["resnet18-mixed", "not here", "90.26 %", "43.00 %"]
