"""A cascade of attacks on a whole data set: shards, the audit of what was left, one verdict at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.adaptive import PRESETS
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.engine.engine import TRIED, Engine
from adaptive_smoothing.attacks.views import Smooth
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation import accuracy, alarms
from adaptive_smoothing.evaluation.accuracy import Attack, Evaluation
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.evaluation.shards import Shard
from adaptive_smoothing.evaluation.verdict import STANDS, Audit, Verdict
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.sharded import Progress, ShardedRun, ShardWatch, Watch, check_size
from adaptive_smoothing.threat import Threat

DEFAULTS = EvaluationOptions()
# From this many images on, the minute that compiling takes on a GPU is won back.
WORTH_COMPILING = 5000
# Images that the alarms are tried on.
PROBED = {"cuda": 32, "cpu": 12}


@dataclass(frozen=True, kw_only=True)
class EvaluationRun(ShardedRun):
    """Everything that decides what an evaluation computes, and how it is spread over the machine."""

    cascade: Cascade
    batch_size: int | None = None
    compiled: bool | None = None
    precise: bool = False
    with_alarms: bool = True
    # One that somebody has already; by default a new one.
    engine: Engine | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("batch_size", self.batch_size)

    def run(self, devices: Sequence[str] = (), watch: Watch | None = None) -> Verdict:
        self.journal.bind(self.binding)
        early = self.probe() if self.with_alarms else []
        watch = watch or (lambda progress: None)
        columns = self.columns(watch, devices)
        audit = self._audit(columns, watch) if self.cascade.audit else None
        late = self._late_alarms(columns) if self.with_alarms else []
        return self._verdict(columns, audit, (*early, *late) if self.with_alarms else None)

    @property
    def settings(self) -> dict[str, Any]:
        return {"attack": describe(self.cascade), "precise": self.precise}

    def make_tool(self) -> Engine:
        if self.engine is not None:
            return self.engine
        compiled = self.compiled
        if compiled is None:
            compiled = self.device.type == "cuda" and len(self.data) >= WORTH_COMPILING
        return Engine(self.model, self.device, self.batch_size, compiled, self.precise, self._examples)

    def _examples(self) -> Tensor:
        """The same in every process and after every crash."""
        return self.batch(slice(0, TRIED)).images

    def shard(self, name: str, rows: slice, watch: ShardWatch) -> Columns:
        return self._shard(name, rows, self.cascade.stages).run(self.tool, watch)

    def standing(self, columns: Columns) -> int:
        return int((columns["fooled_by"] == STANDS).sum())

    def _shard(self, name: str, rows: slice | np.ndarray, stages: tuple[Stage, ...], first_stage: int = 0) -> Shard:
        return Shard(name, self.batch(rows), self._threat(rows), stages, self.journal, first_stage)

    def _threat(self, rows: slice | np.ndarray) -> Threat:
        """That of some of the images: with their radii."""
        threat = self.cascade.threat
        if isinstance(threat.eps, Tensor) and threat.eps.dim():
            which = rows if isinstance(rows, slice) else torch.from_numpy(rows)
            threat = threat.with_eps(threat.eps.cpu()[which].to(self.device))
        return threat

    def _audit(self, columns: Columns, watch: Watch) -> Audit:
        """Full attacks on some survivors: those that came closest, and some of the others at random."""
        survivors = np.flatnonzero(columns["fooled_by"] == STANDS)
        some, near = self.cascade.audit_sizes(len(survivors))
        closest = survivors[np.argsort(-columns["margin"][survivors], kind="stable")][:near]
        others = np.setdiff1d(survivors, closest)
        index = torch.from_numpy(columns["index"][others])
        chance = fold(torch.full_like(index, keyed_seed(0, "audit") & WORD), index).numpy()
        random = others[np.argsort(chance, kind="stable")][:some]
        chosen = np.sort(np.concatenate([closest, random]))
        if len(chosen):
            self._audit_shard(columns, chosen, watch)
        fell = columns["fooled_by"] >= len(self.cascade.stages)
        return Audit(len(survivors), len(random), int(fell[random].sum()), len(closest), int(fell[closest].sum()))

    def _audit_shard(self, columns: Columns, chosen: np.ndarray, watch: Watch) -> None:
        def tell(stage: str, share: float, images: int, left: int) -> None:
            watch(Progress(len(chosen), share * len(chosen), len(chosen), left, f"audit: {stage}"))

        first = len(self.cascade.stages)
        found = self._shard("audit", chosen, self.cascade.audit, first).run(self.tool, tell)
        closer = (found["fooled_by"] >= first) | (found["margin"] > columns["margin"][chosen])
        for name in ("fooled_by", "margin", "attacked_prediction", "attacked_gap"):
            columns[name][chosen[closer]] = found[name][closer]
        columns["queries"][chosen] += found["queries"]

    def probe(self) -> list[alarms.Alarm]:
        """What is suspicious about the model itself, before any time is spent on attacks."""
        rows = slice(0, PROBED.get(self.device.type, 32))
        batch, threat = self.batch(rows), self._threat(rows)
        with frozen(self.model):
            found = alarms.probe(self.model, batch.images, batch.labels, threat)
        # Attacks on the smooth mixture are an answer to a flat alpha; if they find much, that is another alarm.
        answered = any(isinstance(stage.source, Smooth) for stage in self.cascade.stages)
        return [alarm for alarm in found if alarm.name != "flat-alpha" or not answered]

    def _late_alarms(self, columns: Columns) -> list[alarms.Alarm]:
        """What the order in which attacks succeeded says, in the cascade and in its audit."""
        right = columns["fooled_by"][columns["fooled_by"] >= STANDS]
        first = len(self.cascade.stages)
        found = alarms.after(self.cascade.stage_keys[:first], np.where(right < first, right, STANDS), len(self.data))
        audited = sum(self.cascade.audit_sizes(int(((right == STANDS) | (right >= first)).sum())))
        names = ("cascade", *self.cascade.stage_keys[first:])
        return found + alarms.after(names, right[right >= first] - first + 1, audited)

    def _verdict(self, columns: Columns, audit: Audit | None, found: tuple[alarms.Alarm, ...] | None) -> Verdict:
        tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
        audited = audit is not None and audit.random + audit.closest > 0
        return Verdict(
            tensors["index"],
            tensors["label"],
            tensors["prediction"],
            tensors["attacked_prediction"],
            **{name: tensors[name] for name in ("fooled_by", "margin", "queries", "clean_gap", "attacked_gap")},
            stages=self.cascade.stage_keys if audited else self.cascade.stage_keys[: len(self.cascade.stages)],
            settings={**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]},
            audit=audit,
            alarms=found,
        )


@overload
def evaluate(model: nn.Module, data: ImageData, attack: Cascade, **options: Any) -> Verdict: ...
@overload
def evaluate(model: nn.Module, data: ImageData, attack: Attack | None = None, **options: Any) -> Evaluation: ...
def evaluate(
    model: nn.Module, data: ImageData, attack: Cascade | Attack | None = None, **options: Any
) -> Evaluation | Verdict:
    """Clean accuracy, and robust accuracy under `attack`: a cascade such as `AutoAttack(threat)`, or any
    function `attack(model, images, labels) -> images`.

    Options: `device`, `batch_size`. For a cascade also `journal` (a folder from which the same call goes on
    after a crash), `overwrite` (what that folder holds of another run), `devices` (several names: one process each,
    which meet in the journal), `shard_size`, `compiled`, `precise` (attacks in full precision, too), `with_alarms`, and
    `watch`, which is called with a `Progress`; for a function `progress`, which is called with the number of images of
    each finished batch.
    """
    if (name := next((name for name, make in PRESETS.items() if make is attack), None)) is not None:
        raise TypeError(f"expected an attack, got the function that makes one: pass ads.preset({name!r}, threat)")
    if isinstance(attack, Cascade):
        spelled = {"alarms" if name == "with_alarms" else name: value for name, value in options.items()}
        names = {field.name for field in fields(EvaluationOptions)} & spelled.keys()
        settings = EvaluationOptions(**{name: spelled.pop(name) for name in names})
        if "watch" in spelled:
            spelled["progress"] = spelled.pop("watch")
        return evaluate_cascade(model, data, attack, **spelled, options=settings)
    return accuracy.evaluate(model, data, attack, **options)


def evaluate_cascade(
    model: nn.Module,
    data: ImageData,
    cascade: Cascade,
    *,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: Watch | None = None,
    options: EvaluationOptions = DEFAULTS,
) -> Verdict:
    """Run a cascade over a data set; see `evaluate`."""
    check_data(data)
    check_eval(model)
    with journal_at(journal, overwrite, devices) as kept:
        judging = EvaluationRun(
            model=model,
            data=data,
            cascade=cascade.for_model(model),
            device=device_of(model, data, device),
            journal=kept,
            batch_size=options.batch_size,
            shard_size=options.shard_size,
            compiled=options.compiled,
            precise=options.precise,
            with_alarms=options.alarms,
        )
        return judging.run(devices, progress)
