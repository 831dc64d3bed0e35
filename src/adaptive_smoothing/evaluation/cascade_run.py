"""A cascade of attacks on a data set: its shards, the audit of its survivors, the alarms, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.engine.batch_norm import prepare_kernels
from adaptive_smoothing.attacks.engine.engine import PROBE_IMAGES, Engine
from adaptive_smoothing.attacks.views import SmoothedSurrogate
from adaptive_smoothing.evaluation import alarms
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.outputs import ATTACKED
from adaptive_smoothing.evaluation.pictures import pictured_rows
from adaptive_smoothing.evaluation.shard import Shard
from adaptive_smoothing.evaluation.verdict import ADVERSARIAL, EASIER, OUTSIDE, ROBUST, Verdict, attack_title
from adaptive_smoothing.mixing.operating_point import operating_point
from adaptive_smoothing.models.contract import frozen
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.models.memory import limited_memory, parse_bytes, with_smaller_batches
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.runs.journal import Columns
from adaptive_smoothing.runs.progress import Progress, RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun, check_size
from adaptive_smoothing.settings.checks import check_at_least, check_whole, warn_user
from adaptive_smoothing.threat import Threat

# Images that the model is checked on for alarms, by type of device.
ALARM_IMAGES = {"cuda": 32, "cpu": 12}


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `evaluate`; with a user's attack function `batch_size`, `memory` and `save_adversarial` apply.

    Args:
        batch_size: images per batch; the default suits the device and the size of the images.
        shard_size: images that are attacked and journalled together; default 1,000, on a CPU 32.
        compiled: compile the model, for runs of half an hour and more on a GPU; it takes about a minute.
        precise: search for attacks in float32 as well; successes are always confirmed in float32.
        alarms: check for signs of masked gradients.
        memory: the most memory to use on a GPU, such as "6G"; default: all of it, if it is needed.
        save_adversarial: how many of the attacked images to return, from the first on; len(data) for all.
        pictures: how many images to show on the page of the run, drawn at random.

    Examples:
        >>> options = ads.EvaluationOptions(alarms=False, save_adversarial=2)
        >>> ads.evaluate(mixed, data, "B", threat, options=options).adversarial.shape
        torch.Size([2, 3, 32, 32])
    """

    batch_size: int | None = None
    shard_size: int | None = None
    compiled: bool = False
    precise: bool = False
    alarms: bool = True
    memory: str | None = None
    save_adversarial: int = 0
    pictures: int = 200

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_bytes(self.memory)
        check_size("batch_size", self.batch_size)
        check_size("shard_size", self.shard_size)
        if self.save_adversarial == "all":
            raise TypeError("expected save_adversarial as a whole number, got 'all': pass len(data)")
        check_whole(save_adversarial=self.save_adversarial, pictures=self.pictures)
        check_at_least(0, save_adversarial=self.save_adversarial, pictures=self.pictures)


DEFAULT_OPTIONS = EvaluationOptions()


@dataclass(frozen=True, kw_only=True)
class EvaluationRun(ShardedRun):
    """A cascade on a model and its data.

    Args:
        cascade: stages that all apply to the model.
        engine: default: a new one.
    """

    cascade: Cascade
    options: EvaluationOptions = DEFAULT_OPTIONS
    engine: Engine | None = None

    def run(self, devices: Sequence[str] = (), progress: RunProgress = ignore_progress) -> Verdict:
        """Check the model for alarms, attack all shards, audit the survivors, and return the verdict."""
        prepare_kernels(self.device)
        try:
            with limited_memory(self.options.memory, self.device):
                return self._verdict(devices, progress)
        finally:
            # Graphs that were recorded for this run would keep their memory. An early error leaves no engine.
            if self.engine is None and "_engine" in vars(self):
                self._engine.close()

    def _verdict(self, devices: Sequence[str], progress: RunProgress) -> Verdict:
        self.journal.bind(self.binding)
        early = self._model_alarms() if self.options.alarms else []
        columns = self.columns(progress, devices)
        audit = self._audit(columns, progress) if self.cascade.audit else None
        audited = 0 if audit is None else audit.audited
        late = self._late_alarms(columns, audited) if self.options.alarms else []
        unstored = (EASIER,) if self.cascade.has_user_function else (EASIER, OUTSIDE)
        found = {name: torch.from_numpy(column) for name, column in columns.items() if name not in unstored}
        kept = found.pop(ADVERSARIAL, None)
        return Verdict(
            **{field: found.pop(name) for name, field in Verdict.COLUMNS.items()},
            attack=attack_title(self.cascade),
            stages=self.cascade.stage_keys if audited else self.cascade.stage_keys[: len(self.cascade.stages)],
            settings=self.result_settings,
            audit=audit,
            alarms=(*early, *late) if self.options.alarms else None,
            outputs=found,
            adversarial=kept[: self._saved] if kept is not None and self._saved else None,
            pictured=None if kept is None else kept[np.searchsorted(self._kept, self._pictured)],
        )

    @property
    def settings(self) -> dict[str, Any]:
        kept = {"save adversarial": self._saved} if self._saved else {}
        if len(self._pictured):
            kept["pictures"] = len(self._pictured)
        return {"attack": describe(self.cascade), "precise": self.options.precise, **kept}

    @property
    def result_settings(self) -> dict[str, Any]:
        """The settings in `result.json`: the binding of the journal, the name of the data, the operating point."""
        named = {**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]}
        point = operating_point(self.model)
        return named if point is None else {**named, "operating point": point}

    @property
    def _saved(self) -> int:
        """How many attacked images are kept."""
        return min(self.options.save_adversarial, len(self.data))

    @cached_property
    def _pictured(self) -> np.ndarray:
        """The positions of the images that become pictures."""
        return pictured_rows(self.data, self.options.pictures).numpy()

    @cached_property
    def _kept(self) -> np.ndarray:
        """The positions of all images whose attacked version is kept, in ascending order."""
        return np.union1d(np.arange(self._saved), self._pictured)

    def _kept_in(self, rows: np.ndarray) -> np.ndarray | None:
        """Return which of these images are kept, as positions among them; None if no image of the run is."""
        # Not a tensor: numpy takes a tensor with one position for a number, and drops the dimension.
        return np.flatnonzero(np.isin(rows, self._kept)) if len(self._kept) else None

    @cached_property
    def _engine(self) -> Engine:
        if self.engine is not None:
            return self.engine
        options, examples = self.options, self._probe_images
        return Engine(self.model, self.device, options.batch_size, options.compiled, options.precise, examples)

    def _probe_images(self) -> Tensor:
        """Return the images on which the engine tests fast arithmetic; they are the same in every process."""
        return self.batch(slice(0, PROBE_IMAGES)).images

    def shard(self, name: str, rows: slice, progress: ShardProgress) -> Columns:
        keep = self._kept_in(np.arange(*rows.indices(len(self.data))))
        shard = Shard(name, self.batch(rows), self._threat(rows), self.cascade.stages, self.journal, keep=keep)
        # A process of its own for another device starts here, and not in `run`.
        with limited_memory(self.options.memory, self.device):
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
        """Run the full attacks on the chosen images, and put what they find into the columns."""

        def report(stage: str, share: float, images: int, left: int) -> None:
            progress(Progress(len(chosen), share * len(chosen), len(chosen), left, f"audit: {stage}"))

        first, keep = len(self.cascade.stages), self._kept_in(chosen)
        shard = Shard("audit", self.batch(chosen), self._threat(chosen), self.cascade.audit, self.journal, first, keep)
        found = shard.run(self._engine, report)
        worse = (found["fooled_by"] >= first) | (found["margin"] > columns["margin"][chosen])
        for name in ("fooled_by", "margin", EASIER, *(name for name in columns if name.startswith(f"{ATTACKED}_"))):
            columns[name][chosen[worse]] = found[name][worse]
        if keep is not None:
            better = worse[keep]
            columns[ADVERSARIAL][np.searchsorted(self._kept, chosen[keep][better])] = found[ADVERSARIAL][better]
        columns["queries"][chosen] += found["queries"]
        columns[OUTSIDE][chosen] |= found[OUTSIDE]

    def _model_alarms(self) -> list[alarms.Alarm]:
        """Return the alarms about the model itself, before any time is spent on attacks."""
        wanted = ALARM_IMAGES.get(self.device.type, 32)

        def check(images: int) -> tuple[int, list[alarms.Alarm]]:
            batch = self.batch(rows := slice(0, images))
            return images, alarms.check_model(self.model, batch.images, batch.labels, self._threat(rows))

        with frozen(self.model):
            images, found = with_smaller_batches(check, wanted)
        if images < wanted:
            message = f"memory ran out: alarms were checked on {images} images, not on {wanted}; give more memory"
            warn_user(message)
        # Attacks on the smooth mixture handle a flat alpha; if they find much, a late alarm is raised.
        handled = any(isinstance(stage.source, SmoothedSurrogate) for stage in self.cascade.stages)
        return [alarm for alarm in found if alarm.name != "flat-alpha" or not handled]

    def _late_alarms(self, columns: Columns, audited: int) -> list[alarms.Alarm]:
        """Return the alarms about attacks that succeeded late, in the cascade and in the audit of so many images.

        With a user's attack function, also return those about its images.
        """
        fooled_by = columns["fooled_by"][columns["fooled_by"] >= ROBUST]
        first, keys = len(self.cascade.stages), self.cascade.stage_keys
        found = alarms.check_stages(keys[:first], np.where(fooled_by < first, fooled_by, ROBUST), len(self.data))
        # For the audit the whole cascade counts as one stage.
        late = fooled_by[fooled_by >= first] - first + 1
        found += alarms.check_stages(("cascade", *keys[first:]), late, audited)
        if self.cascade.has_user_function:
            outside = columns[OUTSIDE] & (columns["fooled_by"] == ROBUST)
            found += alarms.check_robust_outside(int(outside.sum()), self.cascade.threat)
            found += alarms.check_easier(int(columns[EASIER].sum()), len(fooled_by))
        return found
