"""The jobs of one attack on one set of images.

A job is one attempt on one image (`step_attack.py`). Jobs that are done leave the batch, and waiting jobs take their
rows. The result is that of trying the attempts on an image one after the other until one succeeds: a job is dropped
only when an earlier attempt has succeeded, and the earliest success counts. With `widest_margin` no job is dropped, and
the widest margin counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome, confirm
from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION, Arithmetic
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.job_batch import JobBatch
from adaptive_smoothing.attacks.step_attack import State, StepAttack
from adaptive_smoothing.attacks.views import MakeView
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.settings.checks import warn_user

# progress(share of the work that is done, number of fooled images)
AttackProgress = Callable[[float, int], None]


def run_attack(
    engine: Engine,
    key: str,
    attack: StepAttack,
    inputs: AttackInput,
    *,
    source: MakeView | None = None,
    precise: bool = False,
    progress: AttackProgress | None = None,
) -> AttackOutcome:
    """Attack every image of `inputs` and return the outcome; key, attack, source and precise are those of a `Stage`."""

    def work(view: nn.Module | None) -> AttackOutcome:
        arithmetic = FULL_PRECISION if precise else engine.arithmetic(inputs)
        try:
            return Jobs(engine, key, attack, inputs, view, arithmetic, progress).run()
        except NotFiniteError:
            if arithmetic == FULL_PRECISION:
                raise
            warn_user(f"the gradient overflows in {arithmetic.name}; {key} uses float32")
            return Jobs(engine, key, attack, inputs, view, FULL_PRECISION, progress).run()

    return engine.run_with_retries(inputs, source, work)


@dataclass
class Jobs:
    """One attack on one set of images. Job k is attempt k // image_count on image k % image_count.

    On the host, jobs are numbers in NumPy arrays: `job[row]` is the job of a row, or -1 if the row is idle.
    """

    engine: Engine
    key: str
    attack: StepAttack
    inputs: AttackInput
    view: nn.Module | None
    arithmetic: Arithmetic
    progress: AttackProgress | None = None

    def __post_init__(self) -> None:
        inputs, view = self.inputs, self.view
        # Targets are those of the view, because a transform of h makes all unlikely classes look equal.
        logits = inputs.logits if view is None else fp32_logits_chunked(view, inputs.images)
        self.targets = self.attack.targets(logits, inputs.labels)
        self.image_count, self.attempt_count = self.targets.shape
        # All jobs before this one have begun or were dropped.
        self.next_job = 0
        # The attempt that succeeded on each image; `attempt_count` where none has.
        self.success = np.full(self.image_count, self.attempt_count)
        self.queries = np.full(self.image_count, self.attempt_count * self.attack.evaluations)
        self.outcome = AttackOutcome.before(inputs)

    def run(self) -> AttackOutcome:
        """Run all jobs and return the outcome of each image."""
        jobs = self._next(self._rows(self.image_count * self.attempt_count))
        # Idle rows repeat the first job.
        job = np.array(jobs + [-1] * (self._rows(len(jobs)) - len(jobs)))
        batch = self._batch(self._begin(np.where(job < 0, jobs[0], job)))
        while (job >= 0).any():
            batch.advance(self.attack.check_every)
            self.engine.passes.add(len(job) * self.attack.check_every * batch.attack.lookahead, batch.gradient)
            job[self._check(batch.state, job)] = -1
            idle = np.flatnonzero(job < 0)
            if new := self._next(len(idle)):
                rows = idle[: len(new)]
                batch.load(self._begin(np.array(new)), self._on_device(rows))
                job[rows] = new
            batch, job = self._shrink(batch, job)
        self._confirm_near_misses()
        self.outcome.queries = self._on_device(self.queries)
        return self.outcome

    def _next(self, count: int) -> list[int]:
        """Return up to `count` jobs that can still change the outcome."""
        found: list[int] = []
        while len(found) < count and self.next_job < self.image_count * self.attempt_count:
            if self._is_open(*divmod(self.next_job, self.image_count)):
                found.append(self.next_job)
            self.next_job += 1
        return found

    def _is_open(self, attempt: int | np.ndarray, image: int | np.ndarray) -> np.ndarray:
        """Return whether attempts can still change the outcome of their images."""
        return (attempt < self.success[image]) | self.attack.widest_margin

    def _begin(self, jobs: np.ndarray) -> State:
        """Return the state of jobs before their first step."""
        attempt, image = (self._on_device(part) for part in divmod(jobs, self.image_count))
        inputs, stream = self.inputs.take(image), keyed_seed(self.attack.seed, self.key) & WORD
        state = {
            "clean": inputs.images,
            "label": inputs.labels,
            "eps": inputs.eps.clone(),
            "target": self.targets[image, attempt],
            "key": fold(fold(torch.full_like(attempt, stream), inputs.index), attempt),
            "step": torch.zeros_like(attempt),
            "end": torch.full_like(attempt, self.attack.evaluations),
            "worst": (inputs.images if inputs.worst is None else inputs.worst).clone(),
            "margin": torch.full_like(inputs.eps, -torch.inf),
            "threshold": torch.zeros_like(inputs.eps),
        }
        return state | self.attack.begin(state, self.inputs.logits.shape[1])

    def _rows(self, jobs: int) -> int:
        return self.engine.rows(jobs, self.arithmetic, self.inputs.images[0].numel())

    def _batch(self, state: State) -> JobBatch:
        return self.engine.batch(self.attack, self.view, self.arithmetic, state)

    def _shrink(self, batch: JobBatch, job: np.ndarray) -> tuple[JobBatch, np.ndarray]:
        """Return a smaller batch and its jobs, if enough rows are idle."""
        running = np.flatnonzero(job >= 0)
        rows = self._rows(len(running))
        # On a GPU another size must be recorded, which takes as long as several steps.
        if not len(running) or rows > (len(job) // 2 if batch.cuda else len(job) - 1):
            return batch, job
        kept = np.concatenate([running, np.repeat(running[:1], rows - len(running))])
        which, job = self._on_device(kept), job[kept]
        job[len(running) :] = -1
        return self._batch({name: value[which] for name, value in batch.state.items()}), job

    def _check(self, state: State, job: np.ndarray) -> np.ndarray:
        """Confirm apparent successes and keep the results of finished jobs; return which rows become idle."""
        numbers = torch.stack([state["margin"], state["threshold"], state["step"].float()])
        margin, threshold, step = numbers.cpu().numpy()
        running, at_end = job >= 0, step >= self.attack.evaluations
        promising = np.flatnonzero(running & (margin > threshold) & (at_end | (not self.attack.widest_margin)))
        if len(promising):
            self._confirm(state, promising, job, step)
        attempt, image = np.divmod(job, self.image_count)
        dropped = running & ~self._is_open(attempt, image)
        finished = running & ~dropped & at_end
        self._keep_closest(state, np.flatnonzero(finished), image, margin)
        if self.progress is not None:
            remaining = running.sum() - np.minimum(step[running] / self.attack.evaluations, 1).sum()
            # Dropped jobs count as done.
            share_done = float((self.next_job - remaining) / (self.image_count * self.attempt_count))
            self.progress(share_done, int((self.success < self.attempt_count).sum()))
        return dropped | finished

    def _confirm(self, state: State, rows: np.ndarray, job: np.ndarray, step: np.ndarray) -> None:
        """Check successes in full precision. One that is not confirmed raises the threshold of its row."""
        which, outcome = self._on_device(rows), self.outcome
        threat = self.inputs.threat.with_eps(state["eps"][which])
        clean, worst = state["clean"][which], threat.project(state["worst"][which], state["clean"][which])
        margin, logits = confirm(self.engine.model, worst, clean, state["label"][which], threat)
        # If fast arithmetic overflowed, the job continues with the margin of full precision.
        computed = state["margin"][which]
        state["margin"][which] = computed = computed.where(computed < torch.finfo(computed.dtype).max, margin)
        state["threshold"][which] = computed.clamp_min(0)
        self.engine.passes.add(len(rows), gradient=False)
        attempt, image = np.divmod(job[rows], self.image_count)
        new = self._counted(margin, attempt, image)
        self.success[image[new]] = attempt[new]
        if not self.attack.widest_margin:
            steps = np.minimum(step[rows[new]], self.attack.evaluations)
            self.queries[image[new]] = attempt[new] * self.attack.evaluations + steps.astype(int)
        at, chosen = self._on_device(image[new]), self._on_device(new)
        outcome.fooled[at] = True
        outcome.worst[at], outcome.margin[at], outcome.logits[at] = worst[chosen], margin[chosen], logits[chosen]

    def _counted(self, margin: Tensor, attempt: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return which successes count: on each image the earliest attempt, or the one with the widest margin."""
        rank, best = attempt, self.success
        if self.attack.widest_margin:
            fooled_margin = self.outcome.margin.where(self.outcome.fooled, -torch.inf)
            rank, best = -margin.cpu().numpy(), -fooled_margin.cpu().numpy()
        new = _first_of_each_image(np.flatnonzero((margin > 0).cpu().numpy()), rank, image)
        return new[rank[new] < best[image[new]]]

    def _keep_closest(self, state: State, rows: np.ndarray, image: np.ndarray, margin: np.ndarray) -> None:
        """Keep the widest margin of the finished jobs of images that are not fooled."""
        rows = _first_of_each_image(rows, -margin, image)
        rows = rows[self.success[image[rows]] == self.attempt_count]
        if not len(rows):
            return
        at, which = self._on_device(image[rows]), self._on_device(rows)
        closer = state["margin"][which] > self.outcome.margin[at]
        at, which = at[closer], which[closer]
        self.outcome.worst[at], self.outcome.margin[at] = state["worst"][which], state["margin"][which]

    def _confirm_near_misses(self) -> None:
        """Check images that survive by less than a rounding error; their margins become those of full precision."""
        outcome, inputs = self.outcome, self.inputs
        at = (~outcome.fooled & (outcome.margin > -self.arithmetic.rounding(inputs.logits))).nonzero().squeeze(1)
        if len(at):
            part = inputs.take(at)
            worst = part.threat.project(outcome.worst[at], part.images)
            margin, logits = confirm(self.engine.model, worst, part.images, part.labels, part.threat)
            outcome.worst[at], outcome.margin[at], outcome.logits[at] = worst, margin, logits
            outcome.fooled[at] = margin > 0

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64).to(self.inputs.images.device)


def _first_of_each_image(rows: np.ndarray, rank: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return, of the rows of each image, the one with the lowest rank."""
    order = rows[np.argsort(rank[rows], kind="stable")]
    return order[np.unique(image[order], return_index=True)[1]]
