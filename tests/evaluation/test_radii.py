"""Several radii: one verdict each, and no work on images that a smaller radius has fooled."""

import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.radii import evaluate_radii, journal_of
from adaptive_smoothing.evaluation.verdict import ROBUST
from adaptive_smoothing.threat import Linf

RADII = [0.003, 0.01, 0.03]


@pytest.fixture
def run(model, data, toys):
    def evaluate(radii=tuple(RADII), make=toys.cascade, on=data, **arguments):
        saved = arguments.pop("save_adversarial", 0)
        options = EvaluationOptions(shard_size=6, alarms=False, save_adversarial=saved)
        return evaluate_radii(model, on, make, Linf, radii, options=options, **arguments)

    return evaluate


def contents(curve, toys):
    return [toys.content(verdict) for verdict in curve.verdicts]


def test_one_radius_gives_the_verdict_of_evaluate(run, toys, verdict):
    assert contents(run([0.01]), toys) == [toys.content(verdict)]


def test_an_image_that_is_fooled_stays_fooled_and_costs_nothing(run, data, toys):
    curve = run(save_adversarial=20)
    first, second, third = curve.verdicts
    assert curve.radii == tuple(RADII) and curve.clean == 0.9
    assert curve.robust == tuple(verdict.robust for verdict in curve.verdicts)
    assert curve.robust[0] > curve.robust[1] > curve.robust[2]
    for smaller, larger in ((first, second), (second, third)):
        fooled = ~smaller.robust_correct
        assert not larger.robust_correct[fooled].any()
        for name in ("fooled_by", "margin", "queries", "attacked_predictions"):
            assert torch.equal(getattr(larger, name)[fooled], getattr(smaller, name)[fooled])
        assert (larger.queries[~fooled] > smaller.queries[~fooled]).all()
        assert torch.equal(larger.adversarial[fooled], smaller.adversarial[fooled])
        moved = Linf(0.0).distance(larger.adversarial, data.floats())
        assert moved[fooled].max() <= smaller_radius(smaller) + 1e-6 and moved.max() <= smaller_radius(larger) + 1e-6


def smaller_radius(verdict):
    return float(verdict.settings["attack"]["threat"].partition(":")[2])


def test_survivors_get_the_verdict_of_a_run_of_their_own(run, data):
    smaller, larger = run(RADII[:2]).verdicts
    left = smaller.robust_correct
    (alone,) = run([RADII[1]], on=data.take(left)).verdicts
    assert torch.equal(larger.fooled_by[left], alone.fooled_by) and torch.equal(larger.margin[left], alone.margin)
    assert larger.audit == alone.audit and larger.attack == "brief at Linf 0.01"
    assert larger.settings["fingerprint"] == data.fingerprint()
    assert larger.settings["smaller radii"] == ["Linf:0.003"] and larger.summary()["images"] == 20


def test_radii_are_sorted_and_repetitions_refused(run):
    assert run([0.01, 0.003]).radii == (0.003, 0.01)
    assert run(iter(RADII[:2])).radii == tuple(RADII[:2])
    assert run([torch.tensor(0.25, dtype=torch.float64), np.float64(0.5)]).radii == (0.25, 0.5)
    for radii in ([], [0.01, 0.01]):
        with pytest.raises(ValueError, match="expected one or more different radii"):
            run(radii)
    with pytest.raises(TypeError, match=r"expected a kind of threat such as ads.Linf, got Linf\(eps=0.1\)"):
        evaluate_radii(None, None, "fast", Linf(0.1), [0.1])


def test_nothing_is_attacked_when_no_image_is_left(run):
    _, none, still_none = run([0.003, 0.9, 1.0]).verdicts
    assert none.robust == still_none.robust == 0
    assert torch.equal(none.queries, still_none.queries) and still_none.attack == "brief at Linf 1"
    assert still_none.audit is not None and still_none.audit.survivors == 0
    assert still_none.summary()["settings"]["attack"]["threat"] == "Linf:1.0"


def test_an_interrupted_run_continues(run, toys, tmp_path, ctrl_c_at, monkeypatch):
    expected = contents(run(RADII[:2]), toys)
    ctrl_c_at(13)  # ten entries are those of the first radius
    with pytest.raises(KeyboardInterrupt):
        run(RADII[:2], journal=tmp_path)
    monkeypatch.undo()
    assert (journal_of(tmp_path, 0) / "audit.entry").is_file() and list(journal_of(tmp_path, 1).glob("*.entry"))
    stages = []
    found = run(RADII[:2], journal=tmp_path, progress=lambda now: stages.append(now.stage))
    assert contents(found, toys) == expected
    assert {stage.partition(":")[0] for stage in stages if stage} == {"eps 0.01"}
    with pytest.raises(ValueError, match="another attack"):
        run([0.004, 0.01], journal=tmp_path)


def test_a_preset_by_name_and_a_short_description(model, data, toys, monkeypatch):
    from adaptive_smoothing.attacks import presets

    monkeypatch.setitem(presets.PRESETS, "fast", toys.cascade)
    curve = ads.evaluate_radii(
        model, data, "fast", ads.Linf, [0.003, 0.01], options=EvaluationOptions(shard_size=6, alarms=False)
    )
    assert repr(curve).startswith("RadiusCurve: clean 90.00 % (68.3 to 98.8); 95 % intervals\n")
    assert repr(curve).endswith(" robust, brief at Linf 0.01")
    assert [row["eps"] for row in curve.summary()["radii"]] == [0.003, 0.01]
    assert int((curve.verdicts[0].fooled_by == ROBUST).sum()) / 20 == curve.robust[0]
