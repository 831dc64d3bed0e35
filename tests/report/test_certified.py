"""Sentences, tables and figures of certificates whose radii are known."""

import numpy as np
import pytest

from adaptive_smoothing.certification.certificates import Certificates, Frontier
from adaptive_smoothing.report.certified import (
    certified_frontier_table,
    certified_sentences,
    certified_table,
    frontier_panel,
    read_certificates,
    write_certificates,
)
from adaptive_smoothing.report.figures import png, side_by_side


def certificates(radii, correct, alpha=0.8, samples=10_000, **changes):
    radius = np.asarray(radii, dtype=float)
    label = np.zeros(len(radius), dtype=int)
    rows = {"label": label, "prediction": np.where(correct, 0, 1), "certified": radius > 0, "radius": radius}
    rows |= {"estimate": 1.5 * radius, "samples": np.full(len(radius), samples)}
    rows |= {"probabilities": np.full((len(radius), 10), 0.1)}
    settings = {"norm": "L2", "alpha": alpha, "method": "smoothing", "sigma": 0.5, "votes": "hard", "samples": samples}
    settings |= {"theorem": "margin", "bound": "clopper-pearson", "runner-up": "complement"}
    return Certificates(rows, {**settings, "failure probability": 0.001, "precision": "float32", **changes})


NEAR = certificates([0.3, 0.3, 0.3, 0.0], [True, True, False, True])
FAR = certificates([0.9, 0.0, 0.0, 0.0], [True, False, False, False], alpha=1.0)


def test_the_table_counts_correct_images_that_reach_the_radius():
    table = certified_table(NEAR)
    rows = {row[0]: row for row in table.rows}
    # Three images are certified, one of them is incorrect; estimates are half as large again.
    assert rows["0"][1] == rows["0.25"][1] == "50.00 %" and rows["0.35"][1] == "0.00 %"
    assert rows["0.4"][1] == "0.00 %" and rows["0.4"][3] == "50.00 %"
    assert not table.note.startswith("–")
    text = " ".join(certified_sentences(NEAR))
    assert "75.00 %" in text and "3 images are certified, 2 of them are correct" in text and "0.150" in text


def test_a_radius_that_the_samples_cannot_reach_has_a_dash_and_a_note():
    """All of 30 votes certify at most 0.5 Phi^-1(0.001^(1 / 30)) = 0.4108, and all of 10,000 at most 1.5993."""
    few = certificates([0.3, 0.3, 0.3, 0.0], [True, True, False, True], alpha=1.0, samples=30)
    table = certified_table(few)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["0.4"] == ("0.00 %", "0.0 to 60.2", "50.00 %")
    assert rows["0.45"] == ("–", "–", "0.00 %")
    assert "–: 30 samples per image cannot certify a radius above 0.4108." in table.note
    both = certified_frontier_table(Frontier({"few": few, "far": FAR}, 0.8))
    rows = {row[0]: row[1:] for row in both.rows}
    assert rows["L2 0.4"] == ("0.0", "25.0", "far") and rows["L2 0.5"] == ("–", "25.0", "far")
    assert both.note == "–: few: 30 samples per image cannot certify a radius above 0.4108."
    linf = certificates([0.01, 0.0], [True, True], alpha=1.0, samples=30, norm="Linf", pixels=3072)
    assert "cannot certify a radius above 0.007411" in certified_table(linf).note


def test_a_frontier_names_the_best_at_each_radius():
    table = certified_frontier_table(Frontier({"near": NEAR, "far": FAR}, 0.8))
    assert table.columns == ("", "near", "far", "best")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["alpha"] == ("0.800", "1.000", "") and rows["clean"] == ("75.0", "25.0", "")
    assert rows["L2 0.2"] == ("50.0", "25.0", "near") and rows["L2 0.7"] == ("0.0", "25.0", "far")
    assert rows["L2 1"] == ("0.0", "0.0", "–")


def test_the_figure_has_a_curve_for_each_and_a_name():
    figure = side_by_side([frontier_panel(Frontier({"near": NEAR, "far": FAR}, 0.8), title="So", estimates=True)])
    (axes,) = figure.axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["best of all", "near, α = 0.800", "far alone", "plug-in estimates", "clean accuracy"]
    assert axes.get_title() == "So" and png(figure).startswith(b"\x89PNG")


def test_written_certificates_are_read_again(tmp_path):
    write_certificates(tmp_path, NEAR, {"h": "some"}, {"seconds": 1})
    again = read_certificates(tmp_path)
    assert again.settings == NEAR.settings and again.accuracy(0.3) == 0.5
    assert again.rows["radius"] == pytest.approx(NEAR.rows["radius"])
