"""A cascade of attacks on a data set: its options, the shards, the audit of the survivors, the alarms, the verdict."""

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

# The column with the number of finished stages, and those of an unfinished shard.
DONE = "done"
PARTIAL = ("fooled_by", "worst", "margin", "logits", "queries")
# Compiling takes a minute on a GPU, which is saved again from this many images on.
WORTH_COMPILING = 5000
# Images that the alarms are computed on, by type of device.
PROBED = {"cuda": 32, "cpu": 12}


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

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)


DEFAULT_OPTIONS = EvaluationOptions()


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
        if saved is not None:
            for name in PARTIAL:
                getattr(state, name).copy_(torch.from_numpy(saved[name]))
        for number in range(0 if saved is None else int(saved[DONE]), len(self.stages)):
            self._attack(number, engine, inputs, state, progress)
            if number + 1 < len(self.stages):
                partial = {name: getattr(state, name).cpu().numpy() for name in PARTIAL}
                self.journal.write(self.name, partial | {DONE: np.array(number + 1)})
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
        if len(left := state.left()):
            part = inputs.take(left)
            margin, logits = confirm(engine.model, state.worst[left], part.images, part.labels, part.threat)
            state.margin[left], state.logits[left] = margin, logits
            state.fooled_by[left[margin > 0]] = self.first_stage + len(self.stages) - 1

    def _columns(self, logits: Tensor, correct: Tensor, state: CascadeState) -> Columns:
        """Return the columns of all images of the shard, attacked or misclassified from the start."""

        def fill(before: Tensor, after: Tensor) -> Tensor:
            before[correct] = after
            return before

        labels, attacked = self.batch.labels, fill(logits.clone(), state.logits)
        columns = {
            "index": self.batch.index,
            "label": labels,
            "prediction": logits.argmax(1),
            "attacked_prediction": attacked.argmax(1),
            "fooled_by": fill(torch.full_like(labels, MISCLASSIFIED), state.fooled_by),
            "margin": fill(logit_margin(logits, labels), state.margin),
            "queries": fill(torch.zeros_like(labels), state.queries),
            "clean_gap": confidence_gap(logits.float().softmax(1)),
            "attacked_gap": confidence_gap(attacked.float().softmax(1)),
        }
        return {name: column.cpu().numpy() for name, column in columns.items()} | {DONE: np.array(len(self.stages))}


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

    def run(self, devices: Sequence[str] = (), progress: RunProgress = ignore_progress) -> Verdict:
        self.journal.bind(self.binding)
        early = self._model_alarms() if self.options.alarms else []
        columns = self.columns(progress, devices)
        audit = self._audit(columns, progress) if self.cascade.audit else None
        audited = audit is not None and audit.random + audit.closest > 0
        return Verdict(
            **{field: torch.from_numpy(columns[name]) for name, field in Verdict.COLUMNS.items()},
            attack=attack_title(self.cascade),
            stages=self.cascade.stage_keys if audited else self.cascade.stage_keys[: len(self.cascade.stages)],
            settings={**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]},
            audit=audit,
            alarms=(*early, *self._late_alarms(columns)) if self.options.alarms else None,
        )

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
        # Fast arithmetic is tested on the same images in every process.
        examples = lambda: self.batch(slice(0, PROBE_IMAGES)).images  # noqa: E731
        return Engine(self.model, self.device, options.batch_size, compiled, options.precise, examples)

    def shard(self, name: str, rows: slice, progress: ShardProgress) -> Columns:
        shard = Shard(name, self.batch(rows), self._threat(rows), self.cascade.stages, self.journal)
        return shard.run(self._engine, progress)

    def count_correct(self, columns: Columns) -> int:
        return int((columns["fooled_by"] == ROBUST).sum())

    def _threat(self, rows: slice | np.ndarray) -> Threat:
        """Return the threat with the radii of some of the images."""
        threat = self.cascade.threat
        if isinstance(threat.eps, Tensor) and threat.eps.dim():
            which = rows if isinstance(rows, slice) else torch.from_numpy(rows)
            threat = threat.with_eps(threat.eps.cpu()[which].to(self.device))
        return threat

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
        shard = Shard("audit", self.batch(chosen), self._threat(chosen), self.cascade.audit, self.journal, first)
        found = shard.run(self._engine, report)
        worse = (found["fooled_by"] >= first) | (found["margin"] > columns["margin"][chosen])
        for name in ("fooled_by", "margin", "attacked_prediction", "attacked_gap"):
            columns[name][chosen[worse]] = found[name][worse]
        columns["queries"][chosen] += found["queries"]

    def _model_alarms(self) -> list[alarms.Alarm]:
        """Return the alarms about the model itself, before any time is spent on attacks."""
        rows = slice(0, PROBED.get(self.device.type, 32))
        batch = self.batch(rows)
        with frozen(self.model):
            found = alarms.check_model(self.model, batch.images, batch.labels, self._threat(rows))
        # Attacks on the smooth mixture handle a flat alpha; if they find much, a late alarm says so.
        handled = any(isinstance(stage.source, SmoothedSurrogate) for stage in self.cascade.stages)
        return [alarm for alarm in found if alarm.name != "flat-alpha" or not handled]

    def _late_alarms(self, columns: Columns) -> list[alarms.Alarm]:
        """Return the alarms about the order in which attacks succeeded, in the cascade and in its audit."""
        fooled_by = columns["fooled_by"][columns["fooled_by"] >= ROBUST]
        first, keys = len(self.cascade.stages), self.cascade.stage_keys
        found = alarms.check_stages(keys[:first], np.where(fooled_by < first, fooled_by, ROBUST), len(self.data))
        audited = sum(self.cascade.audit_sizes(int(((fooled_by == ROBUST) | (fooled_by >= first)).sum())))
        late = fooled_by[fooled_by >= first] - first + 1
        return found + alarms.check_stages(("cascade", *keys[first:]), late, audited)
