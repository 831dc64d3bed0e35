"""A cascade of attacks on a data set: the shards, the audit of the survivors, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, confirm
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, Stage, run_stage
from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.engine.engine import PROBE_IMAGES, Engine
from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.attacks.views import SmoothedSurrogate
from adaptive_smoothing.data.batches import Batch
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation import alarms
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Audit, Verdict, attack_title, confidence_gap
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.runs.journal import Columns, Journal, journal_at
from adaptive_smoothing.runs.progress import Progress, RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun, check_size
from adaptive_smoothing.threat import Threat


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `evaluate`; with a function as the attack only `batch_size` applies.

    Args:
        batch_size: images per batch; the default suits the device and the size of the images.
        shard_size: images that are attacked and journalled together; default 1,000, on a CPU 32.
        compiled: compile the model; by default from 5,000 images on, on CUDA only.
        precise: search for attacks in float32 as well; successes are always confirmed in float32.
        alarms: check for signs of masked gradients.
    """

    batch_size: int | None = None
    shard_size: int | None = None
    compiled: bool | None = None
    precise: bool = False
    alarms: bool = True


DEFAULT_OPTIONS = EvaluationOptions()


# The column with the number of finished stages, and those of an unfinished shard.
DONE = "done"
PARTIAL = ("fooled_by", "worst", "margin", "logits", "queries")


@dataclass(frozen=True)
class Shard:
    """Images, the stages that attack them, and the journal."""

    name: str
    batch: Batch
    threat: Threat
    stages: tuple[Stage, ...]
    journal: Journal
    first_stage: int = 0

    def run(self, engine: Engine, progress: ShardProgress) -> Columns:
        """Return the columns of the shard, continuing after the last stage in the journal."""
        saved = self.journal.read(self.name)
        if saved is not None and saved[DONE] >= len(self.stages):
            return saved
        logits = fp32_logits_chunked(engine.model, self.batch.images)
        check_labels(self.batch.labels, self.batch.images, logits.shape[1])
        correct = (logits.argmax(1) == self.batch.labels).nonzero().squeeze(1)
        inputs = AttackInput(*self.batch, logits, self.threat).take(correct)
        state = CascadeState.before(inputs)
        for number in range(_restore(state, saved), len(self.stages)):
            self._attack(number, engine, inputs, state, progress)
            if number + 1 < len(self.stages):
                self.journal.write(self.name, _partial(state, number + 1))
        self._check_survivors(engine, inputs, state)
        columns = self._columns(logits, correct, state)
        self.journal.write(self.name, columns)
        return columns

    def _attack(
        self, number: int, engine: Engine, inputs: AttackInput, state: CascadeState, progress: ShardProgress
    ) -> None:
        stage, left = self.stages[number], len(state.left())
        costs = [stage.cost for stage in self.stages]

        def report(share: float, fooled: int) -> None:
            done = (sum(costs[:number]) + share * costs[number]) / sum(costs)
            progress(stage.key, done, len(self.batch.labels), left - fooled)

        report(0.0, 0)
        run_stage(engine, self.first_stage + number, stage, inputs, state, report)

    def _check_survivors(self, engine: Engine, inputs: AttackInput, state: CascadeState) -> None:
        """Check in full precision whether the worst version of a survivor fools the model; the last stage gets it."""
        left = state.left()
        if len(left):
            part, worst = inputs.take(left), state.worst[left]
            margin, logits = confirm(engine.model, worst, part.images, part.labels, part.threat)
            state.margin[left], state.logits[left] = margin, logits
            state.fooled_by[left[margin > 0]] = self.first_stage + len(self.stages) - 1

    def _columns(self, logits: Tensor, correct: Tensor, state: CascadeState) -> Columns:
        """Return the columns of all images of the shard, attacked or misclassified from the start."""
        labels = self.batch.labels
        fooled_by = torch.full_like(labels, MISCLASSIFIED)
        fooled_by[correct] = state.fooled_by
        queries = torch.zeros_like(labels)
        queries[correct] = state.queries
        attacked = logits.clone()
        attacked[correct] = state.logits
        margin = logit_margin(logits, labels)
        margin[correct] = state.margin
        columns = {
            "index": self.batch.index,
            "label": labels,
            "prediction": logits.argmax(1),
            "attacked_prediction": attacked.argmax(1),
            "fooled_by": fooled_by,
            "margin": margin,
            "queries": queries,
            "clean_gap": confidence_gap(logits.float().softmax(1)),
            "attacked_gap": confidence_gap(attacked.float().softmax(1)),
        }
        return {name: column.cpu().numpy() for name, column in columns.items()} | {DONE: np.array(len(self.stages))}


def _partial(state: CascadeState, done: int) -> Columns:
    return {name: getattr(state, name).cpu().numpy() for name in PARTIAL} | {DONE: np.array(done)}


def _restore(state: CascadeState, saved: Columns | None) -> int:
    """Fill the state from an entry; returns how many stages are done."""
    if saved is None:
        return 0
    for name in PARTIAL:
        getattr(state, name).copy_(torch.from_numpy(saved[name]))
    return int(saved[DONE])


# Compiling takes a minute on a GPU, which is saved again from this many images on.
WORTH_COMPILING = 5000
# Images that the alarms are computed on, by type of device.
PROBED = {"cuda": 32, "cpu": 12}


def evaluate_cascade(
    model: nn.Module,
    data: ImageData,
    cascade: Cascade,
    *,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: RunProgress | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Verdict:
    """Run a cascade over a data set; see `evaluate`."""
    check_data(data)
    check_eval(model)
    with journal_at(journal, overwrite, devices) as kept:
        run = EvaluationRun(
            model=model,
            data=data,
            cascade=cascade.for_model(model),
            device=device_of(model, data, device),
            journal=kept,
            shard_size=options.shard_size,
            options=options,
        )
        return run.run(devices, progress or ignore_progress)


@dataclass(frozen=True, kw_only=True)
class EvaluationRun(ShardedRun):
    """A cascade on a model and its data. An `engine` that exists already is used instead of a new one."""

    cascade: Cascade
    options: EvaluationOptions = DEFAULT_OPTIONS
    engine: Engine | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("batch_size", self.options.batch_size)

    def run(self, devices: Sequence[str] = (), progress: RunProgress = ignore_progress) -> Verdict:
        self.journal.bind(self.binding)
        early = self._model_alarms() if self.options.alarms else []
        columns = self.columns(progress, devices)
        audit = self._audit(columns, progress) if self.cascade.audit else None
        late = self._late_alarms(columns) if self.options.alarms else []
        return self._verdict(columns, audit, (*early, *late) if self.options.alarms else None)

    @property
    def settings(self) -> dict[str, Any]:
        return {"attack": describe(self.cascade), "precise": self.options.precise}

    @cached_property
    def _engine(self) -> Engine:
        if self.engine is not None:
            return self.engine
        options, compiled = self.options, self.options.compiled
        if compiled is None:
            compiled = self.device.type == "cuda" and len(self.data) >= WORTH_COMPILING
        return Engine(self.model, self.device, options.batch_size, compiled, options.precise, self._examples)

    def _examples(self) -> Tensor:
        """Return the images on which fast arithmetic is tested: the same in every process."""
        return self.batch(slice(0, PROBE_IMAGES)).images

    def shard(self, name: str, rows: slice, progress: ShardProgress) -> Columns:
        return self._shard(name, rows, self.cascade.stages).run(self._engine, progress)

    def count_correct(self, columns: Columns) -> int:
        return int((columns["fooled_by"] == ROBUST).sum())

    def _shard(self, name: str, rows: slice | np.ndarray, stages: tuple[Stage, ...], first_stage: int = 0) -> Shard:
        return Shard(name, self.batch(rows), self._threat(rows), stages, self.journal, first_stage)

    def _threat(self, rows: slice | np.ndarray) -> Threat:
        """Return the threat with the radii of some of the images."""
        threat = self.cascade.threat
        if isinstance(threat.eps, Tensor) and threat.eps.dim():
            which = rows if isinstance(rows, slice) else torch.from_numpy(rows)
            threat = threat.with_eps(threat.eps.cpu()[which].to(self.device))
        return threat

    # --- the audit ------------------------------------------------------------------------------------

    def _audit(self, columns: Columns, progress: RunProgress) -> Audit:
        """Run the full attacks on the survivors with the largest margins and on a random sample of the others."""
        survivors = np.flatnonzero(columns["fooled_by"] == ROBUST)
        some, near = self.cascade.audit_sizes(len(survivors))
        closest = survivors[np.argsort(-columns["margin"][survivors], kind="stable")][:near]
        others = np.setdiff1d(survivors, closest)
        index = torch.from_numpy(columns["index"][others])
        chance = fold(torch.full_like(index, keyed_seed(0, "audit") & WORD), index).numpy()
        random = others[np.argsort(chance, kind="stable")][:some]
        chosen = np.sort(np.concatenate([closest, random]))
        if len(chosen):
            self._audit_shard(columns, chosen, progress)
        fooled = columns["fooled_by"] >= len(self.cascade.stages)
        return Audit(len(survivors), len(random), int(fooled[random].sum()), len(closest), int(fooled[closest].sum()))

    def _audit_shard(self, columns: Columns, chosen: np.ndarray, progress: RunProgress) -> None:
        def report(stage: str, share: float, images: int, left: int) -> None:
            progress(Progress(len(chosen), share * len(chosen), len(chosen), left, f"audit: {stage}"))

        first = len(self.cascade.stages)
        found = self._shard("audit", chosen, self.cascade.audit, first).run(self._engine, report)
        worse = (found["fooled_by"] >= first) | (found["margin"] > columns["margin"][chosen])
        for name in ("fooled_by", "margin", "attacked_prediction", "attacked_gap"):
            columns[name][chosen[worse]] = found[name][worse]
        columns["queries"][chosen] += found["queries"]

    # --- alarms ---------------------------------------------------------------------------------------

    def _model_alarms(self) -> list[alarms.Alarm]:
        """Return the alarms about the model itself, before any time is spent on attacks."""
        rows = slice(0, PROBED.get(self.device.type, 32))
        batch, threat = self.batch(rows), self._threat(rows)
        with frozen(self.model):
            found = alarms.check_model(self.model, batch.images, batch.labels, threat)
        # Attacks on the smooth mixture handle a flat alpha; if they find much, a late alarm says so.
        handled = any(isinstance(stage.source, SmoothedSurrogate) for stage in self.cascade.stages)
        return [alarm for alarm in found if alarm.name != "flat-alpha" or not handled]

    def _late_alarms(self, columns: Columns) -> list[alarms.Alarm]:
        """Return the alarms about the order in which attacks succeeded, in the cascade and in its audit."""
        fooled_by = columns["fooled_by"][columns["fooled_by"] >= ROBUST]
        first, keys = len(self.cascade.stages), self.cascade.stage_keys
        found = alarms.check_stages(keys[:first], np.where(fooled_by < first, fooled_by, ROBUST), len(self.data))
        survivors = int(((fooled_by == ROBUST) | (fooled_by >= first)).sum())
        audited = sum(self.cascade.audit_sizes(survivors))
        late = fooled_by[fooled_by >= first] - first + 1
        return found + alarms.check_stages(("cascade", *keys[first:]), late, audited)

    def _verdict(self, columns: Columns, audit: Audit | None, found: tuple[alarms.Alarm, ...] | None) -> Verdict:
        tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
        audited = audit is not None and audit.random + audit.closest > 0
        return Verdict(
            tensors["index"],
            tensors["label"],
            tensors["prediction"],
            tensors["attacked_prediction"],
            **{name: tensors[name] for name in ("fooled_by", "margin", "queries", "clean_gap", "attacked_gap")},
            attack=attack_title(self.cascade),
            stages=self.cascade.stage_keys if audited else self.cascade.stage_keys[: len(self.cascade.stages)],
            settings={**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]},
            audit=audit,
            alarms=found,
        )
