"""One shard of a data set, attacked by all stages of a cascade and journalled after each of them."""

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
from adaptive_smoothing.evaluation.gaps import confidence_gap
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED
from adaptive_smoothing.models.contract import check_labels
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.runs.journal import Columns, Journal
from adaptive_smoothing.runs.progress import ShardProgress
from adaptive_smoothing.threat import Threat

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
