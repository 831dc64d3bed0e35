"""An evaluation in shards, after interruptions and by several processes gives the result of an undisturbed one."""

import errno
import json
import multiprocessing
import shutil
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST
from adaptive_smoothing.runs import journal as journal_file
from adaptive_smoothing.runs import sharded
from adaptive_smoothing.runs.journal import BINDING, Journal
from adaptive_smoothing.threat import L2, Linf


def test_a_model_in_low_precision_is_evaluated(model, data, toys):
    class Coarse(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.training = model, False

        def forward(self, images):
            return self.model(images).bfloat16()

    verdict = toys.run(Coarse(), data)
    assert 0 < verdict.robust < verdict.clean and verdict.margin.dtype == torch.float32


def test_a_model_without_a_correct_prediction_is_evaluated(model, data, toys):
    wrong = replace(data, labels=(model(data.floats()).argmax(1) + 1) % 4)
    verdict = toys.run(model, wrong)
    assert verdict.clean == verdict.robust == 0 and verdict.queries.sum() == 0
    assert verdict.audit is not None and verdict.audit.survivors == 0 and verdict.audit.missed_share == 0
    # Nothing was audited, so that the stages of the audit are not listed.
    assert [name for name, _, _ in verdict.waterfall] == ["clean", "pgd", "pgd-t"]
    json.dumps(verdict.summary(), allow_nan=False)


def test_images_may_have_radii_of_their_own(model, data, toys):
    radii = torch.where(torch.arange(20) % 2 == 0, 0.0, 1.0)
    for cascade in (toys.cascade(Linf(radii)), Cascade("pgd", Linf(radii), (Stage("pgd", PGD(Linf(radii), steps=5)),))):
        verdict = toys.run(model, data, cascade)
        assert verdict.robust_correct[::2].all()
        assert verdict.robust_correct[1::2].sum() < 5


def test_the_model_keeps_its_flags_and_gets_no_gradient(model, data, toys):
    toys.run(model, data, alarms=True)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


# --- shards and interruptions ---------------------------------------------------------------------------


@pytest.mark.parametrize("shard_size", [1, 7, 100])
def test_the_size_of_the_shards_does_not_matter(model, data, toys, verdict, shard_size):
    other = toys.run(model, data, shard_size=shard_size)
    others = other.rows()
    for name, column in verdict.rows().items():
        assert np.allclose(column, others[name], rtol=0, atol=1e-4 if column.dtype.kind == "f" else 0)
    for name in ("clean", "robust", "waterfall", "queries", "audit"):
        assert verdict.summary()[name] == other.summary()[name]
    settings = [dict(one.settings) for one in (verdict, other)]
    assert [setting.pop("shard size") for setting in settings] == [6, shard_size] and settings[0] == settings[1]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_size_of_the_batches_does_not_matter(model, data, toys, verdict, batch_size):
    other = toys.run(model, data, batch_size=batch_size)
    assert torch.equal(verdict.fooled_by, other.fooled_by) and torch.equal(verdict.queries, other.queries)


def test_the_order_of_the_images_does_not_matter(model, data, toys, verdict):
    """Random numbers, also those of the audit, are keyed by an image's position in the official data."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    other = toys.run(model, data.take(order))
    assert torch.equal(verdict.fooled_by[order], other.fooled_by)
    assert torch.equal(verdict.queries[order], other.queries)


def test_a_journal_does_not_change_the_result(model, data, toys, verdict, tmp_path):
    expected = toys.content(verdict)
    assert toys.content(toys.run(model, data, journal=tmp_path / "journal")) == expected
    calls = []
    model.register_forward_hook(lambda *call: calls.append(call))
    assert toys.content(toys.run(model, data, journal=tmp_path / "journal")) == expected
    assert not calls  # everything was in the journal


def test_an_interruption_at_any_entry_leads_to_the_same_result(
    model, data, toys, verdict, tmp_path, ctrl_c_at, monkeypatch
):
    """Four shards with two stages, and the audit with two: ten entries."""
    expected = toys.content(verdict)
    for k in range(1, 11):
        ctrl_c_at(k)
        with pytest.raises(KeyboardInterrupt):
            toys.run(model, data, journal=tmp_path / str(k))
        monkeypatch.undo()
        assert toys.content(toys.run(model, data, journal=tmp_path / str(k))) == expected
    ctrl_c_at(11)
    assert toys.content(toys.run(model, data, journal=tmp_path / "whole")) == expected


def test_an_interrupted_run_repeats_no_finished_stage(model, data, toys, tmp_path, ctrl_c_at, monkeypatch):
    stages = []

    def record(progress):
        if progress.stage and (not stages or stages[-1] != progress.stage):
            stages.append(progress.stage)

    ctrl_c_at(4)
    with pytest.raises(KeyboardInterrupt):
        toys.run(model, data, journal=tmp_path)
    monkeypatch.undo()
    toys.run(model, data, journal=tmp_path, progress=record)
    # The first shard is done, and the first stage of the second.
    assert stages == ["pgd-t", *["pgd", "pgd-t"] * 2, "audit: fab-t", "audit: square"]


@pytest.mark.parametrize("entry", ["shard-000001", "audit"])
def test_a_damaged_entry_is_repeated(model, data, toys, verdict, tmp_path, entry):
    toys.run(model, data, journal=tmp_path)
    path = tmp_path / f"{entry}.entry"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.warns(UserWarning, match=f"{entry}.* does not match its checksum: its part of the run is repeated"):
        assert toys.content(toys.run(model, data, journal=tmp_path)) == toys.content(verdict)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("k", [1, 10])
def test_after_a_full_disk_the_run_continues(model, data, toys, verdict, tmp_path, monkeypatch, k):
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == k:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file.os, "fsync", full)
    with pytest.raises(OSError, match=r"no space is left for .*: finished parts of the run are kept") as end:
        toys.run(model, data, journal=tmp_path)
    assert end.value.errno == errno.ENOSPC and not list(tmp_path.glob("*.tmp"))
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert toys.content(toys.run(model, data, journal=tmp_path)) == toys.content(verdict)


def test_entries_of_another_run_or_shard_are_not_used(model, data, toys, verdict, tmp_path):
    expected = toys.content(verdict)
    toys.run(model, data, toys.cascade(Linf(0.0001)), journal=tmp_path)
    (tmp_path / BINDING).unlink()
    with pytest.warns(UserWarning, match="does not match its checksum"):
        assert toys.content(toys.run(model, data, journal=tmp_path)) == expected
    shutil.copy(tmp_path / "shard-000000.entry", tmp_path / "shard-000001.entry")
    with pytest.warns(UserWarning, match="shard-000001.entry does not match its checksum"):
        assert toys.content(toys.run(model, data, journal=tmp_path)) == expected


def test_another_run_in_the_same_folder_is_refused_with_the_reason(model, data, toys, tmp_path):
    toys.run(model, data, journal=tmp_path)
    others = {
        "model": lambda: toys.run(toys.network(1), data, journal=tmp_path),
        "data": lambda: toys.run(model, data.take(19), journal=tmp_path),
        "attack": lambda: toys.run(model, data, toys.cascade(Linf(0.03)), journal=tmp_path),
        "shard size": lambda: toys.run(model, data, journal=tmp_path, shard_size=5),
        "model, data": lambda: toys.run(toys.network(1), data.take(19), journal=tmp_path),
    }
    for reason, other in others.items():
        with pytest.raises(ValueError, match=f"got one with another {reason}(, pictures)?: choose another folder"):
            other()
    verdict = toys.run(model, data, journal=tmp_path)  # the journal is unchanged
    assert verdict.settings["data"] == data.name and verdict.settings["fingerprint"] == data.fingerprint()


def test_overwrite_keeps_the_journal_of_the_same_run(model, data, toys, verdict, tmp_path):
    """So that a run with --overwrite can be continued after an interruption."""
    expected = toys.content(toys.run(model, data, journal=tmp_path))
    calls = []
    handle = model.register_forward_hook(lambda *call: calls.append(call))
    assert toys.content(toys.run(model, data, journal=tmp_path, overwrite=True)) == expected and not calls
    handle.remove()
    other = toys.content(toys.run(toys.network(1), data, journal=tmp_path, overwrite=True))
    assert other == toys.content(toys.run(toys.network(1), data)) != expected


@pytest.mark.parametrize(
    "change",
    [
        lambda brief: brief(seed=1),
        lambda brief: brief(L2(0.01)),
        lambda brief: brief(audit_random=4),
        lambda brief: replace(brief(), stages=brief().stages[:1]),
        lambda brief: brief(Linf(torch.full((20,), 0.01))),
        lambda brief: ads.preset("margin", Linf(0.01)),
    ],
    ids=["seed", "norm", "audit", "stages", "radii", "preset"],
)
def test_every_setting_of_an_attack_is_bound_to_the_journal(model, data, toys, tmp_path, change):
    journal = Journal(tmp_path)

    def binding(cascade):
        options = {"model": model, "data": data, "device": torch.device("cpu"), "journal": journal}
        return EvaluationRun(cascade=cascade, **options).binding

    journal.bind(binding(toys.cascade()))
    journal.bind(binding(toys.cascade()))
    with pytest.raises(ValueError, match="another attack"):
        journal.bind(binding(change(toys.cascade)))


# --- several processes ----------------------------------------------------------------------------------


def test_two_processes_give_the_result_of_one(model, data, toys, verdict):
    reports = []
    found = toys.run(model, data, devices=("cpu", "cpu"), progress=reports.append)
    assert toys.content(found) == toys.content(verdict)
    finished = [progress.finished for progress in reports if not progress.stage.startswith("audit")]
    assert finished == sorted(finished) and finished[-1] == 20


def test_an_error_in_a_process_is_the_error_of_the_run(model, data, toys, tmp_path):
    """Its message is one sentence, without the stack of the other process."""
    with torch.no_grad():
        model[3].bias[0] = torch.nan
    with pytest.raises(RuntimeError, match=r"^[^\n]*expected finite logits, got NaN[^\n]*$"):
        toys.run(model, data, devices=("cpu", "cpu"), journal=tmp_path)


def test_what_cannot_be_sent_to_a_process_is_explained(model, data, toys):
    model.then = lambda logits: logits
    with pytest.raises(TypeError, match=r"sent to a process for each device, got .*lambda.*: define functions"):
        toys.run(model, data, devices=("cpu", "cpu"))
    assert not multiprocessing.active_children()


def test_processes_stop_with_the_run(model, data, toys, verdict, tmp_path):
    """Ctrl-C may reach the first process only."""

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toys.run(model, data, devices=("cpu", "cpu"), journal=tmp_path, progress=stop)
    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert not multiprocessing.active_children()
    assert toys.content(toys.run(model, data, journal=tmp_path)) == toys.content(verdict)


def test_all_processes_use_the_same_shards(model, data, toys, monkeypatch, tmp_path):
    """By default shards on a GPU would be larger than those on a CPU."""
    sent = []

    def start(function, args, **options):
        sent.append(args[0])
        return SimpleNamespace(join=lambda timeout: True, processes=[])

    monkeypatch.setattr(sharded.multiprocessing, "start_processes", start)
    toys.run(model, data, devices=("cpu", "cpu"), device="cpu", shard_size=None, journal=tmp_path)
    assert [replace(part, device=torch.device("cuda")).images_per_shard for part in sent] == [32]


def test_the_model_returns_to_its_device_if_no_process_starts(model, data, toys, monkeypatch):
    """An attack that cannot be pickled is an example. The model is moved to the CPU to be sent to the processes."""
    moves = []

    def fail(*arguments, **options):
        raise AttributeError("can't pickle this")

    monkeypatch.setattr(sharded.multiprocessing, "start_processes", fail)
    monkeypatch.setattr(model, "to", moves.append)
    with pytest.raises(TypeError, match="can't pickle this"):
        toys.run(model, data, devices=("cpu", "cpu"))
    assert moves == [torch.device("cpu")]


# --- logits that cannot be trusted ----------------------------------------------------------------------


class Poisoned(nn.Module):
    """Returns NaN for images that do not lie on 256 levels, as those of an attack."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        between = ((images * 255 - (images * 255).round()).abs() > 1e-3).flatten(1).any(1)
        return self.model(images) + torch.where(between, torch.nan, 0.0)[:, None]


def test_nan_is_an_error_and_never_a_robust_image(model, data, toys, tmp_path):
    with pytest.raises(ValueError, match="expected finite logits, got NaN"):
        toys.run(Poisoned(model), data, journal=tmp_path)
    assert not list(tmp_path.glob("*.entry"))
    with torch.no_grad():
        model[3].bias[0] = torch.nan
    with pytest.raises(ValueError, match="expected finite logits, got NaN for 6 of 6 images"):
        toys.run(model, data)


class FavoursUnderGradient(nn.Module):
    """Raises the logit of one class whenever gradients are enabled."""

    def __init__(self, model, favourite):
        super().__init__()
        self.model, self.favourite = model, favourite
        self.training = False

    def forward(self, images):
        return self.model(images) + 100 * torch.eye(4)[self.favourite] * torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:all 12 images of data have the label 1")  # the one that the model favours
def test_an_example_that_only_the_final_check_finds_counts(model, data, toys):
    """The attacks see no success; the worst version is checked once more, and the last stage gets it."""
    predictions = model(data.floats()).argmax(1)
    favourite = int(predictions.mode().values)
    some = data.take(predictions == favourite)
    some = replace(some, labels=torch.full_like(some.labels, favourite))
    attacked = toys.run(FavoursUnderGradient(model, favourite), some, replace(toys.cascade(Linf(0.3)), audit=()))
    assert len(some) > 5 and (attacked.fooled_by == 1).all() and (attacked.margin > 0).all()


# --- the audit ------------------------------------------------------------------------------------------


def test_images_that_an_audit_fools_lower_robust_accuracy(model, data, toys, verdict):
    without, audit = toys.run(model, data, replace(toys.cascade(), audit=())), verdict.audit
    assert without.audit is None and audit is not None
    assert audit.survivors == int(without.robust_correct.sum())
    fooled = (without.fooled_by == ROBUST) & (verdict.fooled_by != ROBUST)
    assert audit.random_fooled + audit.closest_fooled == int(fooled.sum()) > 0
    assert (verdict.fooled_by[fooled] >= 2).all() and verdict.robust == without.robust - fooled.sum().item() / 20
    audited = verdict.queries != without.queries
    assert int(audited.sum()) == audit.random + audit.closest
    assert torch.equal(verdict.fooled_by[~audited], without.fooled_by[~audited])
    # The survivors with the largest margins are among the audited.
    margins = without.margin.where(without.robust_correct, torch.tensor(-torch.inf))
    assert audited[margins.topk(audit.closest).indices].all()
    assert (verdict.margin >= without.margin).all()


def test_few_survivors_are_audited_by_their_share(model, data, toys):
    audit = toys.run(model, data, toys.cascade(audit_share=0.5)).audit
    assert audit.random == round(0.75 * 0.5 * audit.survivors) and audit.closest == round(0.25 * 0.5 * audit.survivors)


@pytest.mark.parametrize("audited", [0, 1, 8])
def test_an_audit_that_finds_nothing_replaces_no_image(model, data, toys, audited):
    """All images are kept, then only one of those audited."""
    cascade = toys.cascade(audit_random=audited, audit_closest=0)
    weak = replace(cascade, audit=(Stage("square", Square(Linf(1e-4), queries=1)),))
    without = toys.run(model, data, replace(cascade, audit=()), save_adversarial=20)
    verdict = toys.run(model, data, weak, save_adversarial=20)
    assert torch.equal(verdict.adversarial, without.adversarial)
    rows = (verdict.queries != without.queries).nonzero().flatten().tolist()
    assert len(rows) == audited
    for row in rows[:1]:
        verdict = toys.run(model, data, weak, save_adversarial=row + 1, pictures=0)
        assert torch.equal(verdict.adversarial, without.adversarial[: row + 1])


def test_an_image_alone_has_the_result_that_it_has_among_others(model, data, toys):
    """Whether it is misclassified, fooled by a stage, fooled in the audit, or robust."""
    together = toys.run(model, data, toys.cascade(audit_random=15, audit_closest=5), save_adversarial=20)
    assert set(together.fooled_by.tolist()) >= {MISCLASSIFIED, ROBUST, 0, 2}
    for row in range(20):
        alone = toys.run(model, data.take([row]), save_adversarial=1)
        assert alone.audit is not None and alone.audit.survivors == alone.audit.random
        assert alone.fooled_by.item() == together.fooled_by[row]
        torch.testing.assert_close(alone.adversarial[0], together.adversarial[row])
        assert torch.equal(alone.adversarial, alone.pictured)


# --- alarms and progress --------------------------------------------------------------------------------


def test_alarms_are_in_the_summary(model, data, toys):
    assert toys.run(model, data, replace(toys.cascade(), audit=()), alarms=True).summary()["alarms"] == []
    (missed,) = toys.run(model, data, alarms=True).alarms
    assert missed.name == "fab-breaks" and "of 8 images" in missed.observation  # of those audited
    with torch.no_grad():
        model[3].weight *= 1e4
        model[3].bias *= 1e4
    (alarm, *_) = toys.run(model, data, alarms=True).summary()["alarms"]
    assert alarm["name"] == "saturated-logits" and alarm["saw"] and alarm["advice"]


def test_examples_that_square_finds_late_raise_an_alarm(model, data, toys):
    """PGD without a step finds next to nothing, Square does."""
    threat = Linf(0.1)
    stages = Stage("pgd", DiversifiedPGD(threat, steps=1, first_step=0.0)), Stage("square", Square(threat, queries=60))
    verdict = toys.run(model, data, Cascade("x", threat, stages), alarms=True)
    assert int((verdict.fooled_by == 1).sum()) >= 2
    assert "square-breaks" in [alarm.name for alarm in verdict.alarms]


def test_progress_rises_to_the_number_of_images(model, data, toys):
    reports = []
    verdict = toys.run(model, data, replace(toys.cascade(), audit=()), progress=reports.append)
    finished = [progress.finished for progress in reports]
    assert finished == sorted(finished) and finished[0] < 6 and finished[-1] == 20
    assert all(progress.images == 20 for progress in reports)
    assert [progress.seen for progress in reports] == sorted(progress.seen for progress in reports)
    assert {progress.stage for progress in reports} == {"pgd", "pgd-t", ""}
    assert reports[-1].accuracy == verdict.robust and reports[-1].seen == 20


def test_progress_of_the_audit_is_reported_separately(model, data, toys):
    reports = []
    verdict = toys.run(model, data, progress=reports.append)
    audit = [progress for progress in reports if progress.stage.startswith("audit: ")]
    assert audit and reports[-1] is audit[-1] and {part.images for part in audit} == {8}
    assert [part.finished for part in audit] == sorted(part.finished for part in audit)
    assert verdict.audit is not None and verdict.audit.random + verdict.audit.closest == 8


def evaluation_run(model, data, toys, **options):
    options = EvaluationOptions(shard_size=6, alarms=False, **options)
    return EvaluationRun(
        model=model, data=data, cascade=toys.cascade(), device=torch.device("cpu"), journal=Journal(), options=options
    )


def test_an_early_error_makes_no_engine(model, data, toys):
    """On a GPU, another error of the engine would hide the first one."""
    run = evaluation_run(model, data, toys, memory="6G")
    with pytest.raises(ValueError, match="expected a GPU for memory='6G', got cpu"):
        run.run()
    assert "_engine" not in vars(run)


def test_the_limit_of_memory_holds_for_shards_as_well(model, data, toys):
    """Processes of other devices compute shards and nothing else."""
    with pytest.raises(ValueError, match="expected a GPU for memory='6G', got cpu"):
        evaluation_run(model, data, toys, memory="6G").shard("shard", slice(0, 6), lambda *now: None)


def test_if_memory_runs_out_alarms_are_checked_on_fewer_images(model, data, toys, monkeypatch):
    seen = []

    def check(model, images, labels, threat):
        seen.append(len(images))
        if len(images) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return []

    monkeypatch.setattr("adaptive_smoothing.evaluation.alarms.check_model", check)
    with pytest.warns(UserWarning, match="memory ran out: alarms were checked on 3 images, not on 12") as warned:
        assert evaluation_run(model, data, toys)._model_alarms() == []
    assert seen == [12, 6, 3] and len(warned) == 1
