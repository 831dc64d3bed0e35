"""The table and the figure of several radii have the accuracies of the verdicts."""

from pathlib import Path

import pytest

from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.report.radii import radii_figure, radii_table, write_radii
from adaptive_smoothing.threat import radius_text


@pytest.fixture
def curve() -> RadiusCurve:
    """Eight images, six of them correct: five are robust at 0.003, two at 0.01."""
    found = load_run(Path(__file__).parent / "stored" / "radii")
    assert isinstance(found, RadiusCurve)
    return found


def test_the_table_has_accuracies_and_newly_fooled_images(curve: RadiusCurve) -> None:
    rows = [(row[0], row[1], row[3]) for row in radii_table(curve).rows]
    assert rows == [("clean", "75.00 %", ""), ("Linf 0.003", "62.50 %", "1"), ("Linf 0.01", "25.00 %", "3")]


def test_the_figure_has_the_clean_accuracy_at_zero_and_radii_in_levels(curve: RadiusCurve) -> None:
    (axes,) = radii_figure(curve).axes
    (bars,) = axes.containers
    assert bars[0].get_xdata().tolist() == pytest.approx([0, 0.765, 2.55])
    assert bars[0].get_ydata().tolist() == [0.75, 0.625, 0.25]
    assert [text.get_text() for text in axes.texts] == ["75.0 %", "62.5 %", "25.0 %"]
    assert axes.get_xlabel() == "Linf radius, in levels of 255"


def test_radii_are_written_as_people_write_them() -> None:
    assert radius_text("Linf", 8 / 255) == "8/255" and radius_text("Linf", 0.01) == "0.01"
    assert radius_text("L2", 8 / 255) == "0.03137" and radius_text("L2", 0.5) == "0.5"


def test_what_is_written_is_read(curve: RadiusCurve, tmp_path: Path) -> None:
    (tmp_path / "rows.npz").touch()  # of an earlier run at one radius
    written = write_radii(tmp_path, curve, {}, {})
    assert not (tmp_path / "rows.npz").exists()
    assert written == ["result.json", "facts.json", "radii.png", "eps-0.003/", "eps-0.01/"]
    again = load_run(tmp_path)
    assert isinstance(again, RadiusCurve) and again.radii == curve.radii and again.robust == curve.robust
