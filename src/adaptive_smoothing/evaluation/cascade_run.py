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

from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.engine.engine import TRIED, Engine
from adaptive_smoothing.attacks.views import Smooth
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation import alarms
from adaptive_smoothing.evaluation.options import DEFAULT_OPTIONS, EvaluationOptions
from adaptive_smoothing.evaluation.shards import Shard
from adaptive_smoothing.evaluation.verdict import ROBUST, Audit, Verdict, attack_title
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.progress import Progress, RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun, check_size
from adaptive_smoothing.threat import Threat

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
        return self.batch(slice(0, TRIED)).images

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
        # Attacks on the smooth mixture handle a flat alpha; if they find much, there is a late alarm.
        handled = any(isinstance(stage.source, Smooth) for stage in self.cascade.stages)
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
