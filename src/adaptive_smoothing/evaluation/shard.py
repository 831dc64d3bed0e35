"""One shard of an evaluation: the images that a cascade attacks and journals together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.attacks.attack_input import AttackInput, confirm
from adaptive_smoothing.attacks.cascade import CascadeState, Stage, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.data.batches import Batch
from adaptive_smoothing.evaluation.attacked_images import is_easier
from adaptive_smoothing.evaluation.gaps import confidence_gap
from adaptive_smoothing.evaluation.outputs import ATTACKED, CLEAN, base_outputs, output_columns
from adaptive_smoothing.evaluation.verdict import ADVERSARIAL, EASIER, MISCLASSIFIED, OUTSIDE
from adaptive_smoothing.models.contract import check_labels
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.runs.journal import Columns, Journal
from adaptive_smoothing.runs.progress import ShardProgress
from adaptive_smoothing.threat import Threat

# The column with the number of finished stages.
DONE = "done"


@dataclass(frozen=True)
class Shard:
    """Images, the stages that attack them, and the journal.

    Args:
        first_stage: number of the first stage; the stages of an audit come after those of the cascade.
        keep: positions in the shard of the attacked images to return; None for no such column.
    """

    name: str
    batch: Batch
    threat: Threat
    stages: tuple[Stage, ...]
    journal: Journal
    first_stage: int = 0
    keep: np.ndarray | None = None

    def run(self, engine: Engine, progress: ShardProgress) -> Columns:
        """Return the columns of the shard, continuing after the last stage in the journal."""
        saved = self.journal.read(self.name)
        done = 0 if saved is None else int(saved[DONE])
        if saved is not None and done == len(self.stages):
            return saved
        logits = fp32_logits_chunked(engine.model, self.batch.images)
        check_labels(self.batch.labels, self.batch.images, logits.shape[1])
        correct = (logits.argmax(1) == self.batch.labels).nonzero().squeeze(1)
        inputs = AttackInput(*self.batch, logits, self.threat).take(correct)
        state = CascadeState.before(inputs)
        if saved is not None:
            for name, column in vars(state).items():
                column.copy_(torch.from_numpy(saved[name]))
        for number in range(done, len(self.stages)):
            self._attack(number, engine, inputs, state, progress)
            if number + 1 < len(self.stages):
                unfinished = {name: column.cpu().numpy() for name, column in vars(state).items()}
                self.journal.write(self.name, unfinished | {DONE: np.array(number + 1)})
        self._check_survivors(engine, inputs, state)
        columns = self._columns(engine, logits, correct, state)
        self.journal.write(self.name, columns)
        return columns

    def _attack(
        self, number: int, engine: Engine, inputs: AttackInput, state: CascadeState, progress: ShardProgress
    ) -> None:
        """Run one stage, and report how much of the work on the shard is done."""
        stage, left = self.stages[number], len(state.left())
        costs = [stage.cost for stage in self.stages]

        def report(share: float, fooled: int) -> None:
            done = (sum(costs[:number]) + share * costs[number]) / sum(costs)
            progress(stage.key, done, len(self.batch.labels), left - fooled)

        report(0.0, 0)
        run_stage(engine, self.first_stage + number, stage, inputs, state, report)

    def _check_survivors(self, engine: Engine, inputs: AttackInput, state: CascadeState) -> None:
        """Count a survivor as fooled by the last stage if its worst version fools the model in full precision."""
        if len(left := state.left()):
            part = inputs.take(left)
            margin, logits = confirm(engine.model, state.worst[left], part.images, part.labels, part.threat)
            state.margin[left], state.logits[left] = margin, logits
            state.fooled_by[left[margin > 0]] = self.first_stage + len(self.stages) - 1

    def _columns(self, engine: Engine, logits: Tensor, correct: Tensor, state: CascadeState) -> Columns:
        """Return the columns of all images of the shard, whether they were attacked or misclassified from the start."""

        def fill(before: Tensor, after: Tensor) -> Tensor:
            filled = before.clone()
            filled[correct] = after
            return filled

        labels, attacked = self.batch.labels, fill(logits, state.logits)
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
            OUTSIDE: fill(torch.zeros_like(labels, dtype=torch.bool), state.outside),
            EASIER: is_easier(attacked, logits, labels),
        }
        clean_bases = attacked_bases = base_outputs(engine.model, self.batch.images, labels)
        if len(correct):
            found = base_outputs(engine.model, state.worst, labels[correct])
            attacked_bases = {name: fill(column, found[name]) for name, column in clean_bases.items()}
        columns |= output_columns(logits, clean_bases, CLEAN) | output_columns(attacked, attacked_bases, ATTACKED)
        if self.keep is not None:
            kept = torch.from_numpy(self.keep).to(labels.device)
            columns[ADVERSARIAL] = fill(self.batch.images, state.worst)[kept]
        return {name: column.cpu().numpy() for name, column in columns.items()} | {DONE: np.array(len(self.stages))}
