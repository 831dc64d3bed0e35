"""The jobs of one attack on one set of images, from the first in line to the last verdict.

Jobs that are done leave the batch and waiting ones take their place. The result is that of trying the jobs of an image
one after the other until one succeeds, in whatever order they really ran: a job is given up only when an earlier one
has succeeded, and the earliest success counts. An attack that goes `to_the_end` gives up none, and of all successes the
one with the widest margin counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.engine.arithmetic import Arithmetic
from adaptive_smoothing.attacks.engine.job_batch import JobBatch
from adaptive_smoothing.attacks.step_attack import State, StepAttack
from adaptive_smoothing.attacks.success import confirm
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.noise import WORD, fold, keyed_seed

if TYPE_CHECKING:
    from adaptive_smoothing.attacks.engine.engine import Engine

# Told the share of the work that is done, and how many images have fallen.
Watch = Callable[[float, int], None]


class Jobs:
    """One attack on one set of images. Job k is attempt k // images on image k % images."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        attack: StepAttack,
        shot: AttackInput,
        source: nn.Module | None,
        arithmetic: Arithmetic,
        watch: Watch | None,
    ) -> None:
        self.engine, self.name, self.attack, self.shot = engine, name, attack, shot
        self.source, self.arithmetic = source, arithmetic
        self.watch = watch or (lambda share, fallen: None)
        # A view may know better which classes are close: to a transform of h all unlikely ones are alike.
        seen = shot.logits if source is None else fp32_logits_chunked(source, shot.images)
        self.targets = attack.targets(seen, shot.labels)
        self.images, self.attempts = self.targets.shape
        self.taken = 0
        self.winner = np.full(self.images, self.attempts)
        self.spent = np.full(self.images, self.attempts * attack.evaluations)
        self.outcome = AttackOutcome.before(shot)

    def run(self) -> AttackOutcome:
        waiting = iter(range(self.images * self.attempts))
        jobs = self._next(waiting, self.engine.rows(self.images * self.attempts))
        batch = self._batch(jobs)
        job = self._padded(jobs, batch)
        while (job >= 0).any():
            batch.advance(self.attack.look_every)
            self.engine.passes.add(len(job) * self.attack.look_every * batch.lookahead, batch.gradient)
            job[self._look(batch.state, job)] = -1
            idle = np.flatnonzero(job < 0)
            if new := self._next(waiting, len(idle)):
                rows = idle[: len(new)]
                batch.put(self._on_device(rows), self._begin(np.array(new)))
                job[rows] = new
            batch, job = self._shrunk(batch, job)
        self._settle()
        self.outcome.queries = self._on_device(self.spent)
        return self.outcome

    # --- jobs -------------------------------------------------------------------------------------

    def _next(self, waiting: Iterator[int], count: int) -> list[int]:
        """Up to `count` jobs on images that no earlier attempt has fooled."""
        found: list[int] = []
        while len(found) < count and (job := next(waiting, None)) is not None:
            self.taken = job + 1
            if self._wanted(*divmod(job, self.images)):
                found.append(job)
        return found

    def _wanted(self, number: Any, image: Any) -> Any:
        """Whether attempts may still change what becomes of their images."""
        return (number < self.winner[image]) | self.attack.to_the_end

    def _share(self, running: np.ndarray, step: np.ndarray) -> float:
        """How much of the work is done, given up jobs included."""
        to_come = len(running) - np.minimum(step / self.attack.evaluations, 1).sum()
        return float((self.taken - to_come) / (self.images * self.attempts))

    def _begin(self, jobs: np.ndarray) -> State:
        number, image = (self._on_device(part) for part in divmod(jobs, self.images))
        shot = self.shot.take(image)
        stream = keyed_seed(self.attack.seed, self.name) & WORD
        state = {
            "clean": shot.images,
            "label": shot.labels,
            "eps": shot.eps.clone(),
            "target": self.targets[image, number],
            "key": fold(fold(torch.full_like(number, stream), shot.index), number),
            "step": torch.zeros_like(number),
            "end": torch.full_like(number, self.attack.evaluations),
            "worst": (shot.images if shot.worst is None else shot.worst).clone(),
            "margin": torch.full_like(shot.eps, -torch.inf),
            "bar": torch.zeros_like(shot.eps),
        }
        return state | self.attack.begin(state, self.shot.logits.shape[1])

    def _batch(self, jobs: list[int]) -> JobBatch:
        """Idle rows repeat the first job."""
        rows = self.engine.rows(len(jobs))
        padded = np.array(jobs + [jobs[0]] * (rows - len(jobs)))
        return self.engine.batch(self.attack, self.source, self.arithmetic, self._begin(padded))

    @staticmethod
    def _padded(jobs: list[int], batch: JobBatch) -> np.ndarray:
        job = np.full(len(batch.state["label"]), -1)
        job[: len(jobs)] = jobs
        return job

    def _shrunk(self, batch: JobBatch, job: np.ndarray) -> tuple[JobBatch, np.ndarray]:
        """A smaller batch, once so many rows are idle that it pays."""
        running = np.flatnonzero(job >= 0)
        rows = self.engine.rows(len(running))
        if not len(running) or rows == len(job):
            return batch, job
        kept = np.concatenate([running, np.repeat(running[:1], rows - len(running))])
        which = self._on_device(kept)
        state = {name: value[which] for name, value in batch.state.items()}
        job = job[kept]
        job[len(running) :] = -1
        return self.engine.batch(self.attack, self.source, self.arithmetic, state), job

    # --- results ----------------------------------------------------------------------------------

    def _look(self, state: State, job: np.ndarray) -> np.ndarray:
        """Judge what seems to have fooled the model, keep the worst of what is finished; says which rows are free."""
        margin, bar, step = torch.stack([state["margin"], state["bar"], state["step"].float()]).cpu().numpy()
        running, at_end = job >= 0, step >= self.attack.evaluations
        promising = np.flatnonzero(running & (margin > bar) & (at_end | (not self.attack.to_the_end)))
        if len(promising):
            self._judge(state, promising, job, step)
        number, image = np.divmod(job, self.images)
        over = running & ~self._wanted(number, image)
        finished = running & ~over & at_end
        self._keep(state, np.flatnonzero(finished), image, margin)
        self.watch(self._share(job[running], step[running]), int((self.winner < self.attempts).sum()))
        return over | finished

    def _judge(self, state: State, rows: np.ndarray, job: np.ndarray, step: np.ndarray) -> None:
        """In full precision, on the model itself. A success that is refused raises the bar for the next one."""
        which = self._on_device(rows)
        threat = self.shot.threat.with_eps(state["eps"][which])
        clean, worst = state["clean"][which], threat.project(state["worst"][which], state["clean"][which])
        margin, logits = confirm(self.engine.model, worst, clean, state["label"][which], threat)
        # Where only fast arithmetic overflows, the job goes on from what full precision says.
        seemed = state["margin"][which]
        state["margin"][which] = seemed = seemed.where(seemed < torch.finfo(seemed.dtype).max, margin)
        state["bar"][which] = seemed.clamp_min(0)
        self.engine.passes.add(len(rows), gradient=False)
        won = (margin > 0).cpu().numpy()
        number, image = np.divmod(job[rows], self.images)
        new = self._new(np.flatnonzero(won), number, image, margin)
        self.winner[image[new]] = number[new]
        if not self.attack.to_the_end:
            made = np.minimum(step[rows[new]], self.attack.evaluations)
            self.spent[image[new]] = number[new] * self.attack.evaluations + made.astype(int)
        at, source = self._on_device(image[new]), self._on_device(new)
        outcome = self.outcome
        outcome.fooled[at] = True
        outcome.worst[at], outcome.margin[at], outcome.logits[at] = worst[source], margin[source], logits[source]

    def _new(self, won: np.ndarray, number: np.ndarray, image: np.ndarray, margin: Tensor) -> np.ndarray:
        """Of the rows that succeeded, the one of each image that counts, where it counts for more than those before."""
        rank = -margin.cpu().numpy() if self.attack.to_the_end else number
        order = won[np.argsort(rank[won], kind="stable")]
        _, first = np.unique(image[order], return_index=True)
        new = order[first]
        if not self.attack.to_the_end:
            return new[number[new] < self.winner[image[new]]]
        before = self.outcome.margin.where(self.outcome.fooled, -torch.inf).cpu().numpy()
        return new[-rank[new] > before[image[new]]]

    def _keep(self, state: State, rows: np.ndarray, image: np.ndarray, margin: np.ndarray) -> None:
        """Of the finished jobs of an image that still stands, the one that came closest."""
        order = rows[np.argsort(-margin[rows], kind="stable")]
        _, first = np.unique(image[order], return_index=True)
        rows = order[first]
        rows = rows[self.winner[image[rows]] == self.attempts]
        if not len(rows):
            return
        at, which = self._on_device(image[rows]), self._on_device(rows)
        closer = state["margin"][which] > self.outcome.margin[at]
        at, which = at[closer], which[closer]
        self.outcome.worst[at], self.outcome.margin[at] = state["worst"][which], state["margin"][which]

    def _settle(self) -> None:
        """Judge what stands by no more than a rounding error; from here on its margin is the true one."""
        outcome, shot = self.outcome, self.shot
        at = (~outcome.fooled & (outcome.margin > -self.arithmetic.rounding(shot.logits))).nonzero().squeeze(1)
        if len(at):
            part = shot.take(at)
            worst = part.threat.project(outcome.worst[at], part.images)
            margin, logits = confirm(self.engine.model, worst, part.images, part.labels, part.threat)
            outcome.worst[at], outcome.margin[at], outcome.logits[at] = worst, margin, logits
            outcome.fooled[at] = margin > 0

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64).to(self.shot.images.device)
