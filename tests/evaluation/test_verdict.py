"""Figures of an evaluation follow from its rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.alarms import Alarm
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.gaps import confidence_gap, gap_statistics
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Evaluation, attack_title
from adaptive_smoothing.results import interval
from adaptive_smoothing.threat import L2, Linf


def test_the_figures_follow_from_the_rows(verdict):
    rows, summary = verdict.rows(), verdict.summary()
    assert rows["index"].tolist() == (np.arange(20) * 7 + 3).tolist()
    assert (rows["fooled_by"] == MISCLASSIFIED).nonzero()[0].tolist() == [3, 11]
    took = [int((rows["fooled_by"] == stage).sum()) for stage in range(4)]
    robust = rows["fooled_by"] == ROBUST
    assert sum(took) + robust.sum() == 18 and min(took[0], took[1], robust.sum()) > 0
    assert verdict.clean == 18 / 20 and verdict.robust == robust.sum() / 20
    assert [step["took"] for step in summary["waterfall"]] == [2, *took]
    assert [step["left"] for step in summary["waterfall"]] == [(18 - sum(took[:k])) / 20 for k in range(5)]
    assert [step["attack"] for step in summary["waterfall"]] == ["clean", "pgd", "pgd-t", "fab-t", "square"]
    assert tuple(summary["robust"]["interval"]) == interval(int(robust.sum()), 20)
    assert (rows["margin"][robust] <= 0).all() and (rows["margin"][~robust] > 0).all()
    assert np.array_equal(rows["attacked_prediction"] == rows["label"], robust)


def test_gaps_are_those_of_the_image_and_of_its_worst_version(model, data, verdict):
    probabilities = model(data.floats()).softmax(1).topk(2).values
    assert torch.allclose(verdict.clean_gap, probabilities[:, 0] - probabilities[:, 1], atol=1e-5)
    wrong = verdict.fooled_by == MISCLASSIFIED
    assert torch.equal(verdict.clean_gap[wrong], verdict.attacked_gap[wrong])
    gaps, robust = verdict.gaps(), verdict.robust_correct
    assert gaps["clean"]["accuracy"] == verdict.clean and gaps["attacked"]["accuracy"] == verdict.robust
    assert gaps["attacked"]["right_mean"] == pytest.approx(verdict.attacked_gap[robust].double().mean().item())
    assert gaps["attacked"]["wrong_median"] == pytest.approx(np.median(verdict.attacked_gap[~robust].double().numpy()))


def test_gaps_computed_by_hand():
    assert confidence_gap(torch.tensor([[0.5, 0.3, 0.2]])).item() == pytest.approx(0.2)
    figures = gap_statistics(np.array([True, True, False]), np.array([0.2, 0.4, 0.9]))
    assert figures == pytest.approx(
        {"accuracy": 2 / 3, "right_mean": 0.3, "right_median": 0.3, "wrong_mean": 0.9, "wrong_median": 0.9}
    )
    assert gap_statistics(np.array([True]), np.array([0.2]))["wrong_mean"] is None


def test_an_image_that_the_attack_corrects_is_not_robust():
    result = Evaluation(torch.arange(2), torch.tensor([1, 1]), torch.tensor([0, 1]), torch.tensor([1, 1]))
    assert result.clean == result.robust == 0.5


# --- repr ---------------------------------------------------------------------------------------------


def test_the_repr_of_an_evaluation_has_its_figures():
    labels = torch.zeros(4, dtype=torch.long)
    clean = Evaluation(labels, labels, torch.tensor([0, 0, 0, 1]))
    assert repr(clean) == "Evaluation: clean 75.00 % (19.4 to 99.4); 95 % intervals\n4 images, no attack"
    attacked = replace(clean, attacked_predictions=torch.tensor([0, 0, 1, 1]), attack="PGD at Linf 0.1")
    assert repr(attacked) == (
        "Evaluation: clean 75.00 % (19.4 to 99.4), robust 50.00 % (6.8 to 93.2); 95 % intervals\n"
        "4 images, PGD at Linf 0.1"
    )


def test_the_repr_of_a_verdict_counts_the_alarms(verdict):
    assert repr(verdict).startswith("Verdict: clean 90.00 % (68.3 to 98.8), robust ")
    assert repr(verdict).endswith("\n20 images, brief at Linf 0.01, alarms off")
    alarm = Alarm("a", "b", "c")
    endings = [repr(replace(verdict, alarms=alarms)).split(", ")[-1] for alarms in ((), (alarm,), (alarm, alarm))]
    assert endings == ["no alarms", "1 alarm", "2 alarms"]


def test_titles_of_attacks(toys):
    def by_hand(model, images, labels):
        return images

    assert attack_title(None) == "" and attack_title(by_hand) == "by_hand"
    assert attack_title(PGD(L2(0.5))) == "PGD at L2 0.5"
    assert attack_title(toys.cascade(Linf(torch.tensor([0.1, 0.2])))) == "brief at Linf with one radius per image"


# --- the audit ----------------------------------------------------------------------------------------


def test_the_bound_of_an_audit_is_that_of_clopper_and_pearson():
    """Of 48 none was fooled: at 95 % at most 1 - 0.05^(1/48) would be, 6.05 %."""
    audit = Audit(survivors=500, random=48, random_fooled=0, closest=16, closest_fooled=1)
    assert audit.unseen == 436 and audit.missed_share == pytest.approx(1 - 0.05 ** (1 / 48))
    assert round(100 * audit.missed_share, 2) == 6.05
    assert list(audit.summary().values()) == [500, 48, 0, 16, 1, 436, audit.missed_share]
    one = replace(audit, random_fooled=1).missed_share
    # The share at which 0 or 1 of 48 are fooled in one case of twenty.
    assert (1 - one) ** 48 + 48 * one * (1 - one) ** 47 == pytest.approx(0.05)


def test_the_bound_is_zero_if_all_are_audited_and_one_if_none_is():
    assert Audit(8, 6, 3, 2, 0).missed_share == 0
    assert Audit(3, 0, 0, 0, 0).missed_share == 1
    assert Audit(0, 0, 0, 0, 0).missed_share == 0
