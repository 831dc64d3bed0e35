"""One shard of a data set through all stages of a cascade, resumable after each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.cascade import CascadeState, Stage, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.success import confirm
from adaptive_smoothing.data.batches import Batch
from adaptive_smoothing.evaluation.verdict import WRONG, top_gap
from adaptive_smoothing.models.contract import check_labels
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.runs.journal import Columns, Journal
from adaptive_smoothing.runs.sharded import ShardWatch
from adaptive_smoothing.threat import Threat

DONE = "done"
KEPT = ("fooled_by", "worst", "margin", "logits", "queries")


@dataclass(frozen=True)
class Shard:
    """Images on their way through a cascade, and where their progress is kept."""

    name: str
    batch: Batch
    threat: Threat
    stages: tuple[Stage, ...]
    journal: Journal
    first_stage: int = 0

    def run(self, engine: Engine, watch: ShardWatch) -> Columns:
        """The columns of the shard."""
        saved = self.journal.read(self.name)
        if saved is not None and saved[DONE] >= len(self.stages):
            return saved
        logits = fp32_logits_chunked(engine.model, self.batch.images)
        check_labels(self.batch.labels, self.batch.images, logits.shape[1])
        right = (logits.argmax(1) == self.batch.labels).nonzero().squeeze(1)
        shot = AttackInput(*self.batch, logits, self.threat).take(right)
        standing = CascadeState.before(shot)
        for number in range(_restore(standing, saved), len(self.stages)):
            self._attack(number, engine, shot, standing, watch)
            if number + 1 < len(self.stages):
                self.journal.write(self.name, _partial(standing, number + 1))
        self._judge_survivors(engine, shot, standing)
        columns = self._columns(logits, right, standing)
        self.journal.write(self.name, columns)
        return columns

    def _attack(
        self, number: int, engine: Engine, shot: AttackInput, standing: CascadeState, watch: ShardWatch
    ) -> None:
        stage, left = self.stages[number], len(standing.left())
        costs = [stage.cost for stage in self.stages]

        def tell(share: float, fallen: int) -> None:
            done = (sum(costs[:number]) + share * costs[number]) / sum(costs)
            watch(stage.key, done, len(self.batch.labels), left - fallen)

        tell(0.0, 0)
        run_stage(engine, self.first_stage + number, stage, shot, standing, tell)

    def _judge_survivors(self, engine: Engine, shot: AttackInput, standing: CascadeState) -> None:
        """The worst version of an image is not known to be harmless before it is looked at in full precision."""
        left = standing.left()
        if len(left):
            part, worst = shot.take(left), standing.worst[left]
            margin, logits = confirm(engine.model, worst, part.images, part.labels, part.threat)
            standing.margin[left], standing.logits[left] = margin, logits
            standing.fooled_by[left[margin > 0]] = self.first_stage + len(self.stages) - 1

    def _columns(self, logits: Tensor, right: Tensor, standing: CascadeState) -> Columns:
        """Every image of the shard, those that were wrong from the start included."""
        labels = self.batch.labels
        fooled_by = torch.full_like(labels, WRONG)
        fooled_by[right] = standing.fooled_by
        queries = torch.zeros_like(labels)
        queries[right] = standing.queries
        everything = logits.clone()
        everything[right] = standing.logits
        kept = logit_margin(logits, labels)
        kept[right] = standing.margin
        columns = {
            "index": self.batch.index,
            "label": labels,
            "prediction": logits.argmax(1),
            "attacked_prediction": everything.argmax(1),
            "fooled_by": fooled_by,
            "margin": kept,
            "queries": queries,
            "clean_gap": top_gap(logits),
            "attacked_gap": top_gap(everything),
        }
        return {name: column.cpu().numpy() for name, column in columns.items()} | {DONE: np.array(len(self.stages))}


def _partial(standing: CascadeState, done: int) -> Columns:
    return {name: getattr(standing, name).cpu().numpy() for name in KEPT} | {DONE: np.array(done)}


def _restore(standing: CascadeState, saved: Columns | None) -> int:
    """Go on from an entry: how many stages it has behind it."""
    if saved is None:
        return 0
    for name in KEPT:
        getattr(standing, name).copy_(torch.from_numpy(saved[name]))
    return int(saved[DONE])
