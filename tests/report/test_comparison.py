"""Comparisons of mixtures: read from files, in a panel, in tables of the package and of docs/tables."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.report.comparison import comparison_panel, frontier_table


@pytest.fixture(scope="module")
def mixture_tables(docs_tables):
    return docs_tables("mixture_tables")


@pytest.fixture
def folder(tmp_path, write_comparison):
    return write_comparison(tmp_path)


def test_robust_accuracy_is_computed_from_the_rows(folder):
    comparison = Comparison.read(folder)
    assert comparison.images == 4 and list(comparison.mixtures) == ["fixed", "ours"]
    assert [point.robust for point in comparison.points] == [0.5, 0.25, 0.75, 0.5]


def test_one_row_per_mixture_one_column_per_clean_accuracy(folder):
    comparison = Comparison.read(folder)
    low, high, *ours = comparison.points
    table = frontier_table(replace(comparison, points=(high, low, *ours)))
    assert table.columns == ("mixture", "at 80 %", "at 90 %")
    assert table.rows[0] == ("fixed", "87.50 / 50.00", "100.00 / 25.00")
    # One image of four differs: 1.96 sqrt(3/16 / 4).
    assert table.rows[1] == ("ours", "87.50 / 75.00 (+25.00 ± 52.56)", "100.00 / 50.00 (+25.00 ± 52.56)")


def test_runs_on_more_images_are_compared_on_those_of_both(folder):
    low, high, below, above = Comparison.read(folder).points
    longer = replace(below, robust_correct=np.append(below.robust_correct, [True] * 4))
    table = frontier_table(Comparison((low, high, longer, above), {}))
    assert table.rows[1] == ("ours", "87.50 / 87.50 (+25.00 ± 52.56)", "100.00 / 50.00 (+25.00 ± 52.56)")


def test_gains_at_the_same_clean_accuracy(mixture_tables, folder):
    """At 15/16 the first mixture is halfway between 0.5 and 0.25; its settings do not reach 1/16."""
    comparison = Comparison.read(folder)
    low, high, below, above = comparison.points
    clean = np.array([False, *[True] * 15])
    points = low, high, replace(below, clean_correct=clean), replace(above, clean_correct=~clean)
    table = mixture_tables.lead_table(replace(comparison, points=points))
    assert table.columns == ("mixture", "clean", "robust", "fixed, robust", "gain")
    unreached, between = table.rows
    assert unreached == ("ours", "6.25", "50.00", "–", "–") and between[:4] == ("ours", "93.75", "75.00", "37.50")
    assert between[4].startswith("+37.50 ± ")
    assert mixture_tables.robust_at(comparison, "fixed", 0.875).tolist() == low.robust_correct.tolist()


def test_one_column_per_attack(mixture_tables, folder):
    table = mixture_tables.attacks_table(Comparison.read(folder))
    assert table.columns == ("mixture", "clean", "B", "C", "all")
    assert table.rows[2] == ("ours", "87.50", "50.00", "75.00", "75.00")
    assert table.note == "Images attacked: B: 8, C: 4; all: 4."


def test_a_single_attack_has_no_column_for_all(mixture_tables, folder):
    comparison = Comparison.read(folder)
    points = (
        replace(point, facts=point.facts | {"attacks": {"B": {"robust": 0.5, "images": 8}}})
        for point in comparison.points
    )
    table = mixture_tables.attacks_table(replace(comparison, points=tuple(points)))
    assert table.columns == ("mixture", "clean", "B")
    assert table.rows[2] == ("ours", "87.50", "50.00") and table.note == "Images attacked: B: 8."


def test_further_attacks_are_added_to_the_same_mixtures(mixture_tables, folder):
    first = Comparison.read(folder)
    attacks = {"attacks": {"D": {"robust": 2 / 3, "images": 3}}}
    further = [
        replace(point, robust_correct=np.array([False, True, True]), facts=attacks) for point in first.points[1:]
    ]
    settings = {"split": "test", "preset": ["D"]}
    other = replace(first, points=tuple(further), facts=first.facts | {"settings": settings})
    both = mixture_tables.with_attacks_of(first, other)
    table = mixture_tables.attacks_table(both)
    assert table.columns == ("mixture", "clean", "B", "C", "D", "all")
    assert [row[-3:] for row in table.rows] == [
        ("50.00", "–", "50.00"),
        ("25.00", "66.67", "0.00"),
        ("75.00", "66.67", "66.67"),
        ("50.00", "66.67", "33.33"),
    ]
    assert mixture_tables.with_attacks_of(first, first).points[0].facts == first.points[0].facts
    other_dial = replace(further[0], clean_correct=~first.points[1].clean_correct)
    with pytest.raises(ValueError, match="expected the same predictions of fixed in both runs"):
        mixture_tables.with_attacks_of(first, replace(first, points=(other_dial,)))
    with pytest.raises(ValueError, match=r"differ in their preset only, got .*test.* and .*val"):
        mixture_tables.with_attacks_of(first, replace(first, facts=first.facts | {"settings": {"split": "val"}}))


def test_one_line_per_mixture(folder):
    axes = Figure().add_subplot()
    comparison_panel(Comparison.read(folder))(axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fixed", "ours"]
    fixed, ours = (container.lines[0].get_xydata() for container in axes.containers)
    assert fixed.tolist() == [[0.875, 0.5], [1.0, 0.25]] and ours.tolist() == [[0.875, 0.75], [1.0, 0.5]]
