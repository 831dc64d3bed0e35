"""An evaluation in pieces, after interruptions and by several processes gives what it gives in one piece."""

import errno
import json
import multiprocessing
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import targeted_margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.evaluation.evaluate import EvaluationRun
from adaptive_smoothing.evaluation.verdict import STANDS, WRONG, Audit, Verdict, gap_figures, top_gap
from adaptive_smoothing.results import interval
from adaptive_smoothing.runs import journal as journal_file
from adaptive_smoothing.runs import workers
from adaptive_smoothing.runs.journal import BINDING, Journal
from adaptive_smoothing.threat import L2, Linf

EPS = 0.01


def network(seed: int = 0) -> nn.Sequential:
    """Bent enough that short attacks miss what longer ones find."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.SiLU(), nn.Linear(24, 4))
    for layer in (model[1], model[3]):
        layer.weight.data *= 4
    return model.eval()


@pytest.fixture
def model() -> nn.Sequential:
    return network()


@pytest.fixture
def data(model: nn.Sequential) -> ads.ImageData:
    """Twenty images, of which the model gets 18 right; their positions are those of another data set."""
    pixels = torch.randint(0, 256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = model(pixels / 255).argmax(1)
    labels[[3, 11]] = (labels[[3, 11]] + 1) % 4
    return ads.from_tensors(pixels, labels, classes=list("abcd"), index=torch.arange(20) * 7 + 3)


def brief(threat=None, seed: int = 0, **audit) -> Cascade:
    """Two stages that miss something, and an audit of half of what they leave."""
    threat = threat or Linf(EPS)
    stages = (
        Stage("pgd", DiversifiedPGD(threat, steps=1, first_step=0.3, seed=seed)),
        Stage("pgd-t", DiversifiedPGD(threat, 1, targeted_margin, target_classes=2, first_step=0.6, seed=seed)),
    )
    audits = (
        Stage("fab-t", FAB(threat, steps=8, target_classes=2, seed=seed)),
        Stage("square", Square(threat, queries=10, seed=seed)),
    )
    sizes = {"audit_random": 5, "audit_closest": 3, "audit_share": 1.0} | audit
    return Cascade("brief", threat, stages, audits, **sizes)


def run(model, data, cascade=None, journal: Path | None = None, **options) -> Verdict:
    settings = {"shard_size": 6, "with_alarms": False} | options
    return ads.evaluate(model, data, cascade or brief(), journal=journal, **settings)


def content(verdict: Verdict) -> tuple[str, dict[str, list]]:
    """What lands in result.json and rows.npz."""
    return json.dumps(verdict.summary()), {name: column.tolist() for name, column in verdict.rows().items()}


# --- what an evaluation says ----------------------------------------------------------------------------


def test_the_figures_follow_from_the_rows(model, data):
    verdict = run(model, data)
    rows, summary = verdict.rows(), verdict.summary()
    assert rows["index"].tolist() == (np.arange(20) * 7 + 3).tolist()
    assert (rows["fooled_by"] == WRONG).nonzero()[0].tolist() == [3, 11]
    took = [int((rows["fooled_by"] == stage).sum()) for stage in range(4)]
    standing = int((rows["fooled_by"] == STANDS).sum())
    assert sum(took) + standing == 18 and min(took[0], took[1], standing) > 0
    assert verdict.clean == 18 / 20 and verdict.robust == standing / 20
    assert [step["took"] for step in summary["waterfall"]] == [2, *took]
    assert [step["left"] for step in summary["waterfall"]] == [(18 - sum(took[:k])) / 20 for k in range(5)]
    assert [step["attack"] for step in summary["waterfall"]] == ["clean", "pgd", "pgd-t", "fab-t", "square"]
    assert tuple(summary["robust"]["interval"]) == interval(standing, 20)
    right = rows["fooled_by"] == STANDS
    assert (rows["margin"][right] <= 0).all() and (rows["margin"][~right] > 0).all()
    assert np.array_equal(rows["attacked_prediction"] == rows["label"], right)


def test_margins_predictions_and_gaps_are_those_of_the_worst_version(model, data):
    """With one stage of no steps the worst version is a random point; clean gaps are those of the images."""
    verdict = run(model, data)
    probabilities = model(data.floats()).softmax(1).topk(2).values
    assert torch.allclose(verdict.clean_gap, probabilities[:, 0] - probabilities[:, 1], atol=1e-5)
    wrong = verdict.fooled_by == WRONG
    assert torch.equal(verdict.clean_gap[wrong], verdict.attacked_gap[wrong])
    gaps = verdict.gaps()
    assert gaps["clean"]["accuracy"] == verdict.clean and gaps["attacked"]["accuracy"] == verdict.robust
    right = verdict.robust_correct
    assert gaps["attacked"]["right_mean"] == pytest.approx(verdict.attacked_gap[right].double().mean().item())
    assert gaps["attacked"]["wrong_median"] == pytest.approx(np.median(verdict.attacked_gap[~right].double().numpy()))


def test_gaps_by_hand():
    assert top_gap(torch.tensor([[0.5, 0.3, 0.2]]).log()).item() == pytest.approx(0.2)
    figures = gap_figures(torch.tensor([True, True, False]), torch.tensor([0.2, 0.4, 0.9]))
    assert figures == pytest.approx(
        {"accuracy": 2 / 3, "right_mean": 0.3, "right_median": 0.3, "wrong_mean": 0.9, "wrong_median": 0.9}
    )
    assert gap_figures(torch.tensor([True]), torch.tensor([0.2]))["wrong_mean"] is None


def test_a_model_of_low_precision_is_evaluated_too(model, data, tmp_path):
    class Coarse(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.training = model, False

        def forward(self, images):
            return self.model(images).bfloat16()

    verdict = run(Coarse(), data, journal=tmp_path)
    assert 0 < verdict.robust < verdict.clean and verdict.margin.dtype == torch.float32


def test_a_model_that_is_always_wrong_is_evaluated_all_the_same(model, data):
    wrong = replace(data, labels=(model(data.floats()).argmax(1) + 1) % 4)
    verdict = run(model, wrong)
    assert verdict.clean == verdict.robust == 0 and verdict.queries.sum() == 0
    assert verdict.audit is not None and verdict.audit.survivors == 0 and verdict.audit.missed_share == 0
    # Nobody was audited, so that no stage of the audit is to be seen.
    assert [name for name, _, _ in verdict.waterfall] == ["clean", "pgd", "pgd-t"]
    json.dumps(verdict.summary(), allow_nan=False)


def test_radii_of_ones_own(model, data):
    radii = torch.where(torch.arange(20) % 2 == 0, 0.0, 1.0)
    for cascade in (brief(Linf(radii)), Cascade("pgd", Linf(radii), (Stage("pgd", PGD(Linf(radii), steps=5)),))):
        verdict = run(model, data, cascade)
        assert verdict.robust_correct[::2].all()
        assert verdict.robust_correct[1::2].sum() < 5


# --- pieces and interruptions ---------------------------------------------------------------------------


@pytest.mark.parametrize("shard_size", [1, 7, 100])
def test_the_size_of_the_shards_does_not_matter(model, data, shard_size):
    one, other = run(model, data), run(model, data, shard_size=shard_size)
    rows, others = one.rows(), other.rows()
    for name, column in rows.items():
        assert np.allclose(column, others[name], rtol=0, atol=1e-4 if column.dtype.kind == "f" else 0)
    for name in ("clean", "robust", "waterfall", "queries", "audit"):
        assert one.summary()[name] == other.summary()[name]
    settings = [dict(verdict.settings) for verdict in (one, other)]
    assert [setting.pop("shard size") for setting in settings] == [6, shard_size] and settings[0] == settings[1]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_size_of_the_batches_does_not_matter(model, data, batch_size):
    one, other = run(model, data), run(model, data, batch_size=batch_size)
    assert torch.equal(one.fooled_by, other.fooled_by) and torch.equal(one.queries, other.queries)


def test_a_journal_does_not_change_the_result(model, data, tmp_path):
    expected = content(run(model, data))
    assert content(run(model, data, journal=tmp_path / "journal")) == expected
    calls = []
    model.register_forward_hook(lambda *call: calls.append(call))
    assert content(run(model, data, journal=tmp_path / "journal")) == expected
    assert not calls  # all of it was in the journal


def test_an_interruption_anywhere_leads_to_the_same_result(model, data, tmp_path, ctrl_c_at, monkeypatch):
    """Four shards of two stages, and the audit of two: ten entries."""
    expected = content(run(model, data))
    for k in range(1, 11):
        folder = tmp_path / str(k)
        ctrl_c_at(k)
        with pytest.raises(KeyboardInterrupt):
            run(model, data, journal=folder)
        monkeypatch.undo()
        assert content(run(model, data, journal=folder)) == expected
    ctrl_c_at(11)
    assert content(run(model, data, journal=tmp_path / "whole")) == expected


def test_an_interrupted_run_goes_on_where_it_was(model, data, tmp_path, ctrl_c_at, monkeypatch):
    stages = []

    def watch(progress):
        if progress.stage and (not stages or stages[-1] != progress.stage):
            stages.append(progress.stage)

    ctrl_c_at(4)
    with pytest.raises(KeyboardInterrupt):
        run(model, data, journal=tmp_path)
    monkeypatch.undo()
    run(model, data, journal=tmp_path, watch=watch)
    # One shard is done, and of the second the first stage.
    assert stages == ["pgd-t", *["pgd", "pgd-t"] * 2, "audit: fab-t", "audit: square"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
@pytest.mark.parametrize("entry", ["shard-000001", "audit"])
def test_a_damaged_entry_is_noticed_and_done_again(model, data, tmp_path, damage, entry):
    expected = content(run(model, data, journal=tmp_path))
    path = tmp_path / f"{entry}.entry"
    whole = path.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    path.write_bytes({"flip": flipped, "cut": whole[:-7], "empty": b""}[damage])
    with pytest.warns(UserWarning, match=f"{entry}.* does not match its checksum: its part of the run is done again"):
        assert content(run(model, data, journal=tmp_path)) == expected
    assert path.read_bytes() == whole


def test_what_a_killed_process_left_behind_is_no_entry(model, data, tmp_path):
    expected = content(run(model, data, journal=tmp_path))
    half = (tmp_path / "shard-000002.entry").read_bytes()[:50]
    (tmp_path / "shard-000002.entry").unlink()
    (tmp_path / "shard-000002.entry.tmp").write_bytes(half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert content(run(model, data, journal=tmp_path)) == expected
    Journal(tmp_path).clear()
    assert not tmp_path.exists()


def test_two_processes_give_the_result_of_one(model, data, tmp_path):
    told = []
    expected = run(model, data)
    verdict = run(model, data, devices=["cpu", "cpu"], watch=told.append)
    assert verdict.summary() == expected.summary()
    assert content(verdict)[1] == content(expected)[1]
    cascade = [progress.finished for progress in told if not progress.stage.startswith("audit")]
    assert cascade == sorted(cascade) and cascade[-1] == 20


def test_an_error_in_a_process_is_the_error_of_the_run(model, data, tmp_path):
    """One sentence of what went wrong, not the stack of another process."""
    with torch.no_grad():
        model[3].bias[0] = torch.nan
    with pytest.raises(RuntimeError, match="expected finite logits, got NaN"):
        run(model, data, devices=["cpu", "cpu"], journal=tmp_path)


def test_processes_stop_with_the_run(model, data, tmp_path):
    """Ctrl-C may reach the first process only. The journal has what was done."""

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, data, devices=["cpu", "cpu"], journal=tmp_path, watch=stop)
    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert not multiprocessing.active_children()
    assert content(run(model, data, journal=tmp_path)) == content(run(model, data))


def test_all_processes_cut_the_same_shards(model, data, monkeypatch, tmp_path):
    """A GPU would cut larger ones than a CPU beside it."""
    sent = []

    def start(function, args, **options):
        sent.append(args[0])
        return SimpleNamespace(join=lambda timeout: True, processes=[])

    monkeypatch.setattr(workers.multiprocessing, "start_processes", start)
    run(model, data, devices=["cuda:0", "cpu"], device="cpu", shard_size=None, journal=tmp_path)
    assert [replace(part, device=torch.device("cuda")).images_per_shard for part in sent] == [32]


# --- the journal ----------------------------------------------------------------------------------------


def test_another_run_in_the_same_folder_is_refused_with_the_reason(model, data, tmp_path):
    run(model, data, journal=tmp_path)
    others = {
        "model": lambda: run(network(1), data, journal=tmp_path),
        "data": lambda: run(model, data.take(19), journal=tmp_path),
        "attack": lambda: run(model, data, brief(Linf(0.03)), journal=tmp_path),
        "shard size": lambda: run(model, data, journal=tmp_path, shard_size=5),
    }
    for reason, other in others.items():
        with pytest.raises(ValueError, match=f"got one with another {reason}: choose another folder"):
            other()
    with pytest.raises(ValueError, match="another model, data:"):
        run(network(1), data.take(19), journal=tmp_path)
    verdict = run(model, data, journal=tmp_path)  # and what was there still is
    assert verdict.settings["data"] == data.name and verdict.settings["fingerprint"] == data.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        lambda: brief(seed=1),
        lambda: brief(L2(EPS)),
        lambda: brief(audit_random=4),
        lambda: replace(brief(), stages=brief().stages[:1]),
        lambda: brief(Linf(torch.full((20,), EPS))),
        lambda: ads.preset("margin", Linf(EPS)),
    ],
)
def test_any_other_attack_is_another_attack(model, data, tmp_path, change):
    journal = Journal(tmp_path)

    def judging(cascade):
        return EvaluationRun(model=model, data=data, cascade=cascade, device=torch.device("cpu"), journal=journal)

    journal.bind(judging(brief()).binding)
    journal.bind(judging(brief()).binding)
    with pytest.raises(ValueError, match="another attack"):
        journal.bind(judging(change()).binding)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_a_full_disk_is_said_and_costs_nothing_that_was_done(model, data, tmp_path, monkeypatch, k):
    expected = content(run(model, data))
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == k:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file.os, "fsync", full)
    with pytest.raises(OSError, match=r"no room is left for .*: what it holds is whole; free some space") as end:
        run(model, data, journal=tmp_path)
    assert end.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.tmp"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert content(run(model, data, journal=tmp_path)) == expected


def test_a_disk_that_is_full_from_the_start(model, data, tmp_path, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file, "write_json", full)
    with pytest.raises(OSError, match="no room is left"):
        run(model, data, journal=tmp_path)


def test_other_troubles_with_a_disk_keep_their_own_words(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal_file.os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        Journal(tmp_path).write("x", {"a": np.zeros(3)})


def test_a_journal_of_nothing_keeps_nothing():
    journal = Journal(None)
    journal.bind({"model": "x"})
    journal.write("entry", {"a": np.zeros(3)})
    assert journal.read("entry") is None
    journal.clear()


def test_entries_belong_to_their_binding_and_to_their_name(model, data, tmp_path):
    """Those of another run, or of another shard, are not taken for this one's."""
    expected = content(run(model, data))
    run(model, data, brief(Linf(0.0001)), journal=tmp_path)
    (tmp_path / BINDING).unlink()
    with pytest.warns(UserWarning, match="does not match its checksum"):
        assert content(run(model, data, journal=tmp_path)) == expected
    shutil.copy(tmp_path / "shard-000000.entry", tmp_path / "shard-000001.entry")
    with pytest.warns(UserWarning, match="shard-000001.entry does not match its checksum"):
        assert content(run(model, data, journal=tmp_path)) == expected


def test_a_damaged_binding_is_said(model, data, tmp_path):
    run(model, data, journal=tmp_path)
    (tmp_path / BINDING).write_text('{"model": ')
    with pytest.raises(ValueError, match=f"got one with a damaged {BINDING}: .* or begin again with --overwrite"):
        run(model, data, journal=tmp_path)
    run(model, data, journal=tmp_path, overwrite=True)


def test_overwriting_begins_again_only_where_the_journal_is_about_something_else(model, data, tmp_path):
    """So that a run that overwrites goes on after an interruption like any other."""
    expected = content(run(model, data, journal=tmp_path))
    calls = []
    handle = model.register_forward_hook(lambda *call: calls.append(call))
    assert content(run(model, data, journal=tmp_path, overwrite=True)) == expected and not calls
    handle.remove()
    other = content(run(network(1), data, journal=tmp_path, overwrite=True))
    assert other == content(run(network(1), data)) != expected


# --- errors ---------------------------------------------------------------------------------------------


class Poisoned(nn.Module):
    """NaN for images that are not made of 256 levels: those that an attack asks about."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        between = ((images * 255 - (images * 255).round()).abs() > 1e-3).flatten(1).any(1)
        return self.model(images) + torch.where(between, torch.nan, 0.0)[:, None]


def test_nan_is_an_error_and_never_a_robust_image(model, data, tmp_path):
    with pytest.raises(ValueError, match="expected finite logits, got NaN"):
        run(Poisoned(model), data, journal=tmp_path)
    assert not list(tmp_path.glob("*.entry"))
    with torch.no_grad():
        model[3].bias[0] = torch.nan
    with pytest.raises(ValueError, match="expected finite logits, got NaN for 6 of 6 images"):
        run(model, data)


class Flattering(nn.Module):
    """Says a class louder while gradients are asked for than when it is judged."""

    def __init__(self, model, favourite):
        super().__init__()
        self.model, self.favourite = model, favourite
        self.training = False

    def forward(self, images):
        return self.model(images) + 100 * torch.eye(4)[self.favourite] * torch.is_grad_enabled()


def test_a_worst_version_that_fools_only_the_verdict_counts(model, data):
    """Attacks see no success; what they leave as worst is looked at once more, and the last stage has it."""
    predictions = model(data.floats()).argmax(1)
    favourite = int(predictions.mode().values)
    some = data.take(predictions == favourite)
    some = replace(some, labels=torch.full_like(some.labels, favourite))
    attacked = run(Flattering(model, favourite), some, replace(brief(Linf(0.3)), audit=()))
    assert len(some) > 5 and (attacked.fooled_by == 1).all() and (attacked.margin > 0).all()


def test_a_model_in_train_mode_and_other_data_are_refused(model, data):
    with pytest.raises(ValueError, match="eval mode"):
        run(nn.Sequential(nn.Dropout(), model).train(), data)
    with pytest.raises(TypeError, match=r"ads\.from_tensors"):
        run(model, (data.floats(), data.labels))
    with pytest.raises(ValueError, match="empty"):
        run(model, data.take(0))


@pytest.mark.parametrize("attack", [brief(), None, PGD(Linf(EPS), steps=2)], ids=["cascade", "clean", "pgd"])
def test_labels_without_a_class_one_logit_and_another_precision_are_refused(model, data, attack):
    """All of them would look like a fragile model, or end in torch."""
    with pytest.raises(ValueError, match="expected labels from 0 to 3 for 4 classes, got 7 to 7"):
        ads.evaluate(model, ads.from_tensors(data.images, torch.full((20,), 7)), attack)
    one = nn.Sequential(nn.Flatten(), nn.Linear(192, 1)).eval()
    with pytest.raises(ValueError, match=r"expected at least two classes, got one logit per image: .* pass ads.wrap"):
        ads.evaluate(one, data, attack)
    with pytest.raises(ValueError, match=r"got weights in torch.float64 \(.*\): call model.float\(\)"):
        ads.evaluate(network().double(), data, attack)


def test_arguments_that_are_something_else_are_refused(model, data):
    with pytest.raises(TypeError, match=r"expected a threat such as ads.Linf\(8 / 255\), got 0.03"):
        ads.fast_attack(0.03)
    with pytest.raises(TypeError, match=r"got the function that makes one: pass ads.preset\('fast', threat\)"):
        ads.evaluate(model, data, ads.fast_attack)
    with pytest.raises(TypeError, match=r"expected a torch module, got str: load a model by name with ads.load_model"):
        ads.evaluate("small-robust", data, brief())
    with pytest.raises(ValueError, match="expected a batch_size of at least 1, got 0"):
        ads.evaluate(model, data, brief(), batch_size=0)
    with pytest.raises(TypeError, match=r"judge.* unexpected keyword argument 'batchsize'"):
        ads.evaluate(model, data, brief(), batchsize=4)


def test_the_model_keeps_its_flags_and_gets_no_gradient(model, data):
    run(model, data, with_alarms=True)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


# --- the audit ------------------------------------------------------------------------------------------


def test_the_bound_of_an_audit_is_clopper_and_pearsons():
    """Of 48 none fell: at 95 % at most 1 - 0.05^(1/48) would, 6.05 %."""
    audit = Audit(survivors=500, random=48, random_fell=0, closest=16, closest_fell=1)
    assert audit.unseen == 436 and audit.missed_share == pytest.approx(1 - 0.05 ** (1 / 48))
    assert round(100 * audit.missed_share, 2) == 6.05
    assert audit.summary()["missed_share_at_most"] == audit.missed_share and audit.summary()["unseen"] == 436
    one = replace(audit, random_fell=1).missed_share
    # The share at which 0 or 1 of 48 fall in one case of twenty.
    assert (1 - one) ** 48 + 48 * one * (1 - one) ** 47 == pytest.approx(0.05)


def test_an_audit_of_all_leaves_nothing_open_and_one_of_none_everything():
    assert Audit(8, 6, 3, 2, 0).missed_share == 0
    assert Audit(3, 0, 0, 0, 0).missed_share == 1
    assert Audit(0, 0, 0, 0, 0).missed_share == 0


def test_what_an_audit_fools_lowers_robust_accuracy(model, data):
    without, verdict = run(model, data, replace(brief(), audit=())), run(model, data)
    audit = verdict.audit
    assert without.audit is None and audit is not None
    assert audit.survivors == int(without.robust_correct.sum())
    fell = (without.fooled_by == STANDS) & (verdict.fooled_by != STANDS)
    assert audit.random_fell + audit.closest_fell == int(fell.sum()) > 0
    assert (verdict.fooled_by[fell] >= 2).all() and verdict.robust == without.robust - fell.sum().item() / 20
    audited = verdict.queries != without.queries
    assert int(audited.sum()) == audit.random + audit.closest
    assert torch.equal(verdict.fooled_by[~audited], without.fooled_by[~audited])
    # Those that had come closest are among the audited.
    margins = without.margin.where(without.robust_correct, torch.tensor(-torch.inf))
    assert audited[margins.topk(audit.closest).indices].all()
    assert (verdict.margin >= without.margin).all()


def test_the_order_of_the_images_does_not_matter(model, data):
    """Chance, also that of the audit, is keyed by an image's position in the official data."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    one, other = run(model, data), run(model, data.take(order))
    assert torch.equal(one.fooled_by[order], other.fooled_by) and torch.equal(one.queries[order], other.queries)


def test_few_survivors_are_audited_by_their_share(model, data):
    audit = run(model, data, brief(audit_share=0.5)).audit
    assert audit.random == round(0.75 * 0.5 * audit.survivors) and audit.closest == round(0.25 * 0.5 * audit.survivors)


# --- alarms and progress --------------------------------------------------------------------------------


def test_alarms_are_in_the_summary(model, data):
    assert run(model, data, replace(brief(), audit=()), with_alarms=True).summary()["alarms"] == []
    (missed,) = run(model, data, with_alarms=True).alarms
    assert missed.name == "fab-breaks" and "of 8 images" in missed.saw  # of those audited
    with torch.no_grad():
        model[3].weight *= 1e4
        model[3].bias *= 1e4
    (alarm, *_) = run(model, data, with_alarms=True).summary()["alarms"]
    assert alarm["name"] == "saturated-logits" and alarm["saw"] and alarm["advice"]


def test_what_square_finds_late_is_an_alarm(model, data):
    """Attacks without a step find next to nothing, Square does."""
    threat = Linf(0.1)
    stages = Stage("pgd", DiversifiedPGD(threat, steps=1, first_step=0.0)), Stage("square", Square(threat, queries=60))
    verdict = run(model, data, Cascade("x", threat, stages), with_alarms=True)
    assert int((verdict.fooled_by == 1).sum()) >= 2
    assert "square-breaks" in [alarm.name for alarm in verdict.alarms]


def test_progress_rises_to_the_number_of_images(model, data):
    told = []
    run(model, data, replace(brief(), audit=()), watch=told.append)
    finished = [progress.finished for progress in told]
    assert finished == sorted(finished) and finished[0] < 6 and finished[-1] == 20
    assert all(progress.images == 20 for progress in told)
    assert [progress.seen for progress in told] == sorted(progress.seen for progress in told)
    assert {progress.stage for progress in told} == {"pgd", "pgd-t", ""}
    verdict = run(model, data, replace(brief(), audit=()))
    assert told[-1].robust == verdict.robust and told[-1].seen == 20


def test_progress_of_the_audit_is_told_apart(model, data):
    told = []
    verdict = run(model, data, watch=told.append)
    audit = [progress for progress in told if progress.stage.startswith("audit: ")]
    assert audit and told[-1] is audit[-1] and {part.images for part in audit} == {8}
    assert [part.finished for part in audit] == sorted(part.finished for part in audit)
    assert verdict.audit is not None and verdict.audit.random + verdict.audit.closest == 8
