import numpy as np
import torch

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Audit, Verdict
from adaptive_smoothing.report.verdicts import audit_sentence, gap_table, waterfall_figure

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


def test_a_gap_of_a_few_images_is_not_shown() -> None:
    clean, attacked = gap_table(verdict([ROBUST] * 4 + [0] * 5, [-1.0] * 4 + [1.0] * 5)).rows
    assert clean == ("clean", "100.00 %", "0.000", "0.000", "–", "–")
    assert attacked == ("attacked", "44.44 %", "–", "–", "0.000", "0.000")
