from dataclasses import replace

import numpy as np
import torch
from rich.console import Console

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.cost import Cost
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Verdict
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.report.verdicts import (
    audit_sentence,
    calibration_figure,
    calibration_table,
    cost_table,
    gap_table,
    verdict_tables,
    waterfall_figure,
    waterfall_table,
)
from adaptive_smoothing.threat import Linf

INFINITY = float("inf")


def verdict(fooled_by: list[int], margin: list[float]) -> Verdict:
    labels = torch.zeros(len(margin), dtype=torch.long)
    by = torch.tensor(fooled_by)
    return Verdict(
        index=torch.arange(len(margin)),
        labels=labels,
        clean_predictions=labels + (by == MISCLASSIFIED),
        attacked_predictions=labels + (by != ROBUST),
        fooled_by=by,
        margin=torch.tensor(margin),
        queries=labels,
        clean_gap=labels.float(),
        attacked_gap=labels.float(),
        stages=("apgd-ce", "apgd-t"),
        settings={},
    )


def test_the_bars_are_the_accuracy_that_is_left() -> None:
    left, _ = waterfall_figure(verdict([MISCLASSIFIED, 0, 0, 1, ROBUST], [1, 1, 1, 1, -1])).axes
    robust, fooled = (np.array([bar.get_width() for bar in bars]) for bars in left.containers)
    assert np.allclose(robust, [80, 40, 20]) and np.allclose(fooled, [20, 40, 20])
    assert [label.get_text() for label in left.get_yticklabels()] == ["clean", *map(stage_title, ("apgd-ce", "apgd-t"))]
    assert [text.get_text() for text in left.texts] == ["80.00 %  (−1)", "40.00 %  (−2)", "20.00 %  (−1)"]


def test_every_margin_is_in_the_histogram() -> None:
    _, right = waterfall_figure(verdict([MISCLASSIFIED, 0, 1, ROBUST, ROBUST], [7, 40, 1e-4, -0.5, -INFINITY])).axes
    robust, fooled = right.containers
    assert sum(bar.get_height() for bar in robust) == 1 and sum(bar.get_height() for bar in fooled) == 2
    assert min(bar.get_x() for bar in fooled if bar.get_height()) <= -39
    assert all(bar.get_x() >= 0 for bar in robust if bar.get_height())
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["robust: 2", "fooled: 2"]


def test_a_run_without_an_attack_has_a_figure() -> None:
    assert len(waterfall_figure(verdict([ROBUST, MISCLASSIFIED], [-INFINITY, 1])).axes) == 2


def test_the_audit_bounds_the_accuracy_that_was_missed() -> None:
    """With none of 59 random images fooled, the bound is 1 - 0.05 ** (1 / 59) = 4.95 %."""
    words = audit_sentence(Audit(survivors=1000, random=59, random_fooled=0, closest=41, closest_fooled=2), 2000)
    assert "fooled were 0 of 59 random images, and 2 of the 41 that were closest to being fooled." in words
    assert "at most 5.0 % of the 900 images that were not audited can be fooled. That is 2.23 points" in words
    assert audit_sentence(Audit(3, 0, 0, 3, 0), 100).startswith("No audit: 3 images survived")


def test_the_notes_say_whether_fooled_images_are_attacked_as_well() -> None:
    """The preset margin does that. Older files have another name for it."""
    plain = verdict([ROBUST, 0], [-1, 1])
    linf = Linf(8 / 255)
    margin, fast = ({"attack": describe(preset(name, linf))} for name in ("margin", "fast"))
    old = {"attack": {"stages": [{"attack": {"to_the_end": True}}]}}
    for settings, fooled in ((margin, True), (old, True), (fast, False), ({"attack": "mine"}, False), ({}, False)):
        run = replace(plain, settings=settings)
        assert ("and on the fooled ones, for the widest margin" in waterfall_table(run).note) == fooled
        assert ("Most presets stop at the first success" in gap_table(run).note) == (not fooled)


def test_a_gap_of_a_few_images_is_not_shown() -> None:
    clean, attacked = gap_table(verdict([ROBUST] * 4 + [0] * 5, [-1.0] * 4 + [1.0] * 5)).rows
    assert clean == ("clean", "100.00 %", "0.000", "0.000", "–", "–")
    assert attacked == ("attacked", "44.44 %", "–", "–", "0.000", "0.000")


# --- calibration --------------------------------------------------------------------------------------


def calibrated() -> Verdict:
    """Ten images: seven certain and correct, three certain and incorrect; g is never certain, h always correct."""
    wrong = torch.arange(10) >= 7
    plain = verdict([MISCLASSIFIED if each else ROBUST for each in wrong], [1.0 if each else -1.0 for each in wrong])
    one, zero = torch.ones(10), torch.zeros(10, dtype=torch.long)
    outputs = {}
    for version in ("clean", "attacked"):
        outputs |= {f"{version}_confidence": one, f"{version}_alpha": one}
        outputs |= {f"{version}_g_prediction": wrong.long(), f"{version}_g_confidence": 0.5 * one}
        outputs |= {f"{version}_h_prediction": zero, f"{version}_h_confidence": one}
    return replace(plain, outputs=outputs)


def test_the_calibration_table_has_the_errors() -> None:
    rows = {row[0]: row[1:] for row in calibration_table(calibrated()).rows}
    assert rows["mixture, clean"] == ("30.00 %", "100.00 %", "70.00 %") == rows["mixture, attacked"]
    assert rows["g, clean"] == ("20.00 %", "50.00 %", "70.00 %")
    assert rows["h, attacked"] == ("0.00 %", "100.00 %", "100.00 %")
    assert len(rows) == 6


def test_the_reliability_diagram_has_a_curve_of_each_classifier() -> None:
    clean, attacked = calibration_figure(calibrated()).axes
    for axes in (clean, attacked):
        lines = {line.get_label(): (line.get_xdata()[-1], line.get_ydata()[-1]) for line in axes.get_lines()}
        assert lines["mixture: error 30.0 %"] == (1, 0.7) and lines["g: error 20.0 %"] == (0.5, 0.7)
        assert lines["h: error 0.0 %"] == (1, 1) and lines["perfect calibration"] == (1, 1)


def test_a_verdict_without_outputs_has_no_calibration() -> None:
    plain = verdict([ROBUST], [-1.0])
    assert plain.calibration() == {} and [table.title for table in verdict_tables(plain, {})][-1] == "Confidence gaps"


def test_the_words_of_the_cost_table_are_not_broken_on_60_columns() -> None:
    costs = {name: Cost(794_000, 104_000_000, 1234.0) for name in ("compact-mixed", "compact-standard")}
    console = Console(width=60)
    with console.capture() as printed:
        console.print(rich_table(cost_table(costs)))
    words = {word for heading in cost_table(costs).columns for word in heading.split()}
    assert words <= set(printed.get().split())
