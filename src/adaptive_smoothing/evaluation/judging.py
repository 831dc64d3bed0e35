"""A cascade of attacks on a whole data set: shards, the audit of what was left, one verdict at the end.

Only one shard at a time is in floats or on the device. What a shard becomes does not depend on the others, so shards
can be done by several processes, and again after a crash, with the same result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.adaptive import PRESETS
from adaptive_smoothing.attacks.arithmetic import frozen
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.engine import TRIED, Engine
from adaptive_smoothing.attacks.views import Smooth
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation import accuracy, alarms
from adaptive_smoothing.evaluation.accuracy import Attack, Evaluation
from adaptive_smoothing.evaluation.describing import describe, model_digest
from adaptive_smoothing.evaluation.journal import Columns, Journal
from adaptive_smoothing.evaluation.shards import DONE, Shard
from adaptive_smoothing.evaluation.verdict import STANDS, Audit, Verdict
from adaptive_smoothing.evaluation.workers import spread
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.version import code_version

# Images that go through all stages together, and are journalled together.
SHARD = {"cuda": 1000, "cpu": 32}
# From this many images on, the minute that compiling takes on a GPU is won back.
WORTH_COMPILING = 5000
# Images that the alarms are tried on.
PROBED = {"cuda": 32, "cpu": 12}


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is: images' worth of work, and what is known of those seen so far."""

    images: int
    finished: float
    seen: int
    standing: int
    stage: str

    @property
    def robust(self) -> float | None:
        return self.standing / self.seen if self.seen else None

    def during(self, stage: str, share: float, images: int, left: int) -> Progress:
        """Later: some of the work on a shard of so many images is done, and so many of them are left standing."""
        return Progress(self.images, self.finished + share * images, self.seen + images, self.standing + left, stage)


@dataclass(frozen=True)
class Judging:
    """Everything that decides what an evaluation computes, and how it is spread over the machine."""

    model: nn.Module
    data: ImageData
    cascade: Cascade
    device: torch.device
    journal: Journal
    batch_size: int | None = None
    shard_size: int | None = None
    compiled: bool | None = None
    precise: bool = False
    with_alarms: bool = True

    def run(
        self,
        devices: Sequence[str] = (),
        watch: Callable[[Progress], None] | None = None,
        engine: Engine | None = None,
    ) -> Verdict:
        self.journal.bind(self.binding)
        early = self.probe() if self.with_alarms else []
        watch = watch or (lambda progress: None)
        if len(devices) > 1:
            spread(self, devices, watch)
        engine = engine or self.engine()
        # What several processes did has been told already.
        tell = watch if len(devices) <= 1 else lambda progress: None
        parts = [part for _, part in self.shards(engine, tell)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != DONE}
        audit = self._audit(engine, columns, watch) if self.cascade.audit else None
        late = self._late_alarms(columns) if self.with_alarms else []
        return self._verdict(columns, audit, (*early, *late) if self.with_alarms else None)

    def engine(self) -> Engine:
        compiled = self.compiled
        if compiled is None:
            compiled = self.device.type == "cuda" and len(self.data) >= WORTH_COMPILING
        return Engine(self.model, self.device, self.batch_size, compiled, self.precise, self._examples)

    def _examples(self) -> Tensor:
        """The same in every process and after every crash."""
        return self._batch(slice(0, TRIED))[0].images

    def shards(
        self, engine: Engine, watch: Callable[[Progress], None], *, every: int = 1, first: int = 0
    ) -> Iterator[tuple[int, Columns]]:
        """The shards in order, or every so many of them from the first on."""
        so_far = Progress(len(self.data), 0, 0, 0, "")
        for number, start in enumerate(range(0, len(self.data), self.images_per_shard)):
            if number % every != first:
                continue
            shard = self._shard(f"shard-{number:06}", slice(start, start + self.images_per_shard), self.cascade.stages)
            columns = shard.run(engine, lambda *told, so_far=so_far: watch(so_far.during(*told)))
            so_far = so_far.during("", 1.0, len(columns["label"]), int((columns["fooled_by"] == STANDS).sum()))
            watch(so_far)
            yield number, columns

    @property
    def images_per_shard(self) -> int:
        return self.shard_size or SHARD.get(self.device.type, 256)

    def _shard(self, name: str, rows: slice | np.ndarray, stages: tuple[Stage, ...], first_stage: int = 0) -> Shard:
        return Shard(name, *self._batch(rows), stages, self.journal, first_stage)

    def _batch(self, rows: slice | np.ndarray) -> tuple[Batch, Threat]:
        """Some images as floats on the device, with their radii."""
        data, threat = self.data.take(rows), self.cascade.threat
        if isinstance(threat.eps, Tensor) and threat.eps.dim():
            which = rows if isinstance(rows, slice) else torch.from_numpy(rows)
            threat = threat.with_eps(threat.eps.cpu()[which].to(self.device))
        return next(iter(batches(data, len(data), device=self.device))), threat

    @cached_property
    def binding(self) -> dict[str, Any]:
        """What the result depends on; hashing a large model takes a while."""
        return {
            "model": model_digest(self.model),
            "data": self.data.fingerprint(),
            "attack": describe(self.cascade),
            "shard size": self.images_per_shard,
            "precise": self.precise,
            "code": code_version(),
            "torch": torch.__version__,
        }

    def _audit(self, engine: Engine, columns: Columns, watch: Callable[[Progress], None]) -> Audit:
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
            self._audit_shard(engine, columns, chosen, watch)
        fell = columns["fooled_by"] >= len(self.cascade.stages)
        return Audit(len(survivors), len(random), int(fell[random].sum()), len(closest), int(fell[closest].sum()))

    def _audit_shard(
        self, engine: Engine, columns: Columns, chosen: np.ndarray, watch: Callable[[Progress], None]
    ) -> None:
        def tell(stage: str, share: float, images: int, left: int) -> None:
            watch(Progress(len(chosen), share * len(chosen), len(chosen), left, f"audit: {stage}"))

        first = len(self.cascade.stages)
        found = self._shard("audit", chosen, self.cascade.audit, first).run(engine, tell)
        closer = (found["fooled_by"] >= first) | (found["margin"] > columns["margin"][chosen])
        for name in ("fooled_by", "margin", "attacked_prediction", "attacked_gap"):
            columns[name][chosen[closer]] = found[name][closer]
        columns["queries"][chosen] += found["queries"]

    def probe(self) -> list[alarms.Alarm]:
        """What is suspicious about the model itself, before any time is spent on attacks."""
        rows = slice(0, PROBED.get(self.device.type, 32))
        batch, threat = self._batch(rows)
        with frozen(self.model):
            found = alarms.probe(self.model, batch.images, batch.labels, threat)
        # Attacks on the smooth mixture are an answer to a flat alpha; if they find much, that is another alarm.
        answered = any(isinstance(stage.source, Smooth) for stage in self.cascade.stages)
        return [alarm for alarm in found if alarm.name != "flat-alpha" or not answered]

    def _late_alarms(self, columns: Columns) -> list[alarms.Alarm]:
        """What the order in which attacks succeeded says, in the cascade and in its audit."""
        right = columns["fooled_by"][columns["fooled_by"] >= STANDS]
        first = len(self.cascade.stages)
        found = alarms.after(self.cascade.stage_names[:first], np.where(right < first, right, STANDS), len(self.data))
        audited = sum(self.cascade.audit_sizes(int(((right == STANDS) | (right >= first)).sum())))
        names = ("cascade", *self.cascade.stage_names[first:])
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
            stages=self.cascade.stage_names if audited else self.cascade.stage_names[: len(self.cascade.stages)],
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
        return judge(model, data, attack, **options)
    return accuracy.evaluate(model, data, attack, **options)


def judge(
    model: nn.Module,
    data: ImageData,
    cascade: Cascade,
    *,
    device: torch.device | str | None = None,
    journal: str | Path | None = None,
    overwrite: bool = False,
    devices: Sequence[str] = (),
    watch: Callable[[Progress], None] | None = None,
    batch_size: int | None = None,
    shard_size: int | None = None,
    compiled: bool | None = None,
    precise: bool = False,
    with_alarms: bool = True,
) -> Verdict:
    """Run a cascade over a data set; see `evaluate`."""
    accuracy.check_data(data)
    check_eval(model)
    for name, size in (("batch_size", batch_size), ("shard_size", shard_size)):
        if size is not None and size < 1:
            raise ValueError(f"expected a {name} of at least 1, got {size}: leave it out for one that suits the device")
    where = torch.device(device or next(iter(model.parameters()), data.images).device)
    with tempfile.TemporaryDirectory() if journal is None and len(devices) > 1 else nullcontext(journal) as folder:
        kept = Journal(None if folder is None else Path(folder), overwrite)
        suited = cascade.for_model(model)
        judging = Judging(
            model, data, suited, where, kept, batch_size, shard_size, compiled, precise, with_alarms=with_alarms
        )
        return judging.run(devices, watch)
