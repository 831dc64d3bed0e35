"""Mixtures side by side: read from files, in tables, in a panel."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from adaptive_smoothing.report.comparison import Comparison, attacks_table, comparison_panel, frontier_table
from adaptive_smoothing.results import write_json, write_rows


@pytest.fixture
def folder(tmp_path):
    """Two mixtures at two clean accuracies, 8 images, of which 4 were attacked with C."""
    rows, found = {"index": np.arange(8), "label": np.zeros(8, int)}, []
    right = {
        0: "11111110 11110000 1100",
        1: "11111111 11000000 1000",
        2: "11111110 11110000 1110",
        3: "11111111 11100000 1100",
    }
    for number, (mixture, wanted) in enumerate((name, at) for name in ("fixed", "ours") for at in (0.8, 0.9)):
        columns = dict(zip(("clean", "B", "C"), right[number].split(), strict=True))
        rows |= {f"{number}.{name}": np.array(list(bits), int).astype(bool) for name, bits in columns.items()}
        attacks = {
            name: {"robust": rows[f"{number}.{name}"].mean(), "images": len(columns[name])} for name in ("B", "C")
        }
        found.append({"mixture": mixture, "wanted": wanted, "attacks": attacks, "of": 4})
    write_rows(tmp_path / "rows.npz", rows)
    write_json(tmp_path / "result.json", {"images": 8, "mixtures": found})
    return tmp_path


def test_what_stands_is_read_from_the_rows(folder):
    comparison = Comparison.read(folder)
    assert comparison.images == 4 and list(comparison.mixtures) == ["fixed", "ours"]
    assert [point.robust for point in comparison.points] == [0.5, 0.25, 0.75, 0.5]


def test_a_row_a_mixture_a_column_a_clean_accuracy(folder):
    table = frontier_table(Comparison.read(folder))
    assert table.columns == ("mixture", "at 80 %", "at 90 %")
    assert table.rows[0] == ("fixed", "87.50 / 50.00", "100.00 / 25.00")
    # One image of four differs: 1.96 sqrt(3/16 / 4).
    assert table.rows[1] == ("ours", "87.50 / 75.00 (+25.00 ± 42.44)", "100.00 / 50.00 (+25.00 ± 42.44)")


def test_a_column_an_attack(folder):
    table = attacks_table(Comparison.read(folder))
    assert table.columns == ("mixture", "clean", "B", "C", "all of them")
    assert table.rows[2] == ("ours", "87.50", "50.00", "75.00", "75.00")
    assert table.note == "Images attacked: B: 8, C: 4; all of them on 4."


def test_a_line_each(folder):
    axes = Figure().add_subplot()
    comparison_panel(Comparison.read(folder))(axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fixed", "ours"]
    fixed, ours = (container.lines[0].get_xydata() for container in axes.containers)
    assert fixed.tolist() == [[0.875, 0.5], [1.0, 0.25]] and ours.tolist() == [[0.875, 0.75], [1.0, 0.5]]
