from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo

pytestmark = pytest.mark.usefixtures("package")


def printed() -> str:
    return CliRunner().invoke(app, ["models"], catch_exceptions=False).output


def test_models_are_listed_with_the_accuracies_on_their_cards() -> None:
    assert "compact-standard" in printed() and "93.12 %" in printed() and "50.00 %" in printed()


def test_mixtures_are_listed_also_if_they_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    MixedClassifier(g, h, FineTunedTail.of(h)).save_pretrained(tmp_path / "mixed")
    monkeypatch.setattr(zoo, "zoo_folder", lambda: tmp_path)
    assert "Mixtures" in printed() and "mixed" in printed() and "fine-tuned tail" in printed()
    (tmp_path / "mixed/mixture.json").write_text('{"format": 99}')
    assert "mixed" in printed() and "cannot be read" in printed()
