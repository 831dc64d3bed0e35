"""The engine: runs the jobs of an attack in full batches until every image has fallen or every job has failed.

Jobs that are done leave the batch and waiting ones take their place. The result is that of trying the jobs of an image
one after the other until one succeeds, in whatever order they really ran: a job is given up only when an earlier one
has succeeded, and the earliest success counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.arithmetic import FastModel, frozen
from adaptive_smoothing.attacks.steps import State, StepAttack, Victim
from adaptive_smoothing.attacks.verdict import verdict
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.threat import Threat

# Rows of a batch of CIFAR's size: two cores are full with some dozens.
BATCH = {"cuda": 2048, "cpu": 32}
CIFAR_PIXELS = 3 * 32 * 32
# Fewer images than these take a device as long, or nearly.
FULL = {"cuda": 1024, "cpu": 32}
# Sizes a batch can have on a GPU, where each has to be recorded once: a third apart.
SIZES = tuple(size for power in range(5, 16) for size in (2**power, 3 * 2 ** (power - 1)))


View = Callable[[nn.Module], nn.Module]
# Told the share of the work that is done, and how many images have fallen.
Watch = Callable[[float, int], None]


@dataclass(frozen=True)
class Shot:
    """Images with what an attack has to know of them: labels, positions in the data set, logits, radii."""

    images: Tensor
    labels: Tensor
    index: Tensor
    logits: Tensor
    threat: Threat

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def eps(self) -> Tensor:
        return torch.as_tensor(self.threat.eps, dtype=torch.float32, device=self.images.device).expand(len(self))

    def take(self, which: Tensor) -> Shot:
        images, labels, index, logits = (part[which] for part in (self.images, self.labels, self.index, self.logits))
        return Shot(images, labels, index, logits, self.threat.take(which))


@dataclass
class Outcome:
    """What an attack made of each image: whether it fell, its worst version and margin, the queries spent on it."""

    fooled: Tensor
    worst: Tensor
    margin: Tensor
    queries: Tensor


@dataclass
class Passes:
    """Images that went through the model, idle rows of a batch included."""

    forward: int = 0
    backward: int = 0

    def add(self, images: int, gradient: bool) -> None:
        self.forward += images
        self.backward += images * gradient


@dataclass
class Engine:
    """Attacks `model` on one device. It keeps what it has compiled and recorded, so that the next images go faster."""

    model: nn.Module
    device: torch.device
    batch_size: int | None = None
    compiled: bool = False
    passes: Passes = field(default_factory=Passes)

    def __post_init__(self) -> None:
        self.size = self.batch_size or BATCH.get(self.device.type, 256)
        self._views: dict[View, nn.Module] = {}
        self._fast: dict[int, FastModel] = {}
        self._recorded: dict[tuple[int, int, int], _Batch] = {}
        # Recorded graphs take turns, and nothing outlives a replay: they can all work in the same memory.
        self._memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def run(
        self,
        name: str,
        attack: StepAttack,
        shot: Shot,
        *,
        source: View | None = None,
        watch: Watch | None = None,
    ) -> Outcome:
        """Attack every image of `shot`; `name` is what the random numbers are keyed by.

        `watch` is told now and then the share of the work that is done, and how many images have fallen.
        """
        return self.retried(shot, source, lambda view: _Run(self, name, attack, shot, view, watch).run())

    def retried(self, shot: Shot, source: View | None, work: Callable[[nn.Module | None], Outcome]) -> Outcome:
        """Work on a view of the model, frozen, until the batches are small enough for it."""
        if self.batch_size is None:
            pixels = shot.images[0].numel()
            self.size = min(self.size, max(8, BATCH.get(self.device.type, 256) * CIFAR_PIXELS // pixels))
        while True:
            try:
                view = self.view(source)
                with frozen(*filter(None, (self.model, view))):
                    return work(view)
            except torch.OutOfMemoryError:
                if self.size == 1:
                    raise
                self._begin_again(size=self.size // 2)
            except RuntimeError as error:
                # Asking for the compiler's own class of errors would take two seconds to import it.
                if not (self.compiled and type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))):
                    raise
                warnings.warn(f"this model does not compile, so that attacks take longer: {error}", stacklevel=2)
                self._begin_again(compiled=False)

    def _begin_again(self, **changes: Any) -> None:
        """With other settings; what was compiled or recorded with the old ones goes."""
        for name, value in changes.items():
            setattr(self, name, value)
        self._fast.clear()
        self._recorded.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def view(self, source: View | None) -> nn.Module | None:
        """A view of the model, made once."""
        if source is None:
            return None
        if source not in self._views:
            self._views[source] = source(self.model)
        return self._views[source]

    def victim(self, source: nn.Module | None) -> Victim:
        return Victim(self._fast_model(self.model), None if source is None else self._fast_model(source))

    def _fast_model(self, model: nn.Module) -> FastModel:
        if id(model) not in self._fast:
            # A view is attacked too shortly to win back the time that compiling it would take.
            compiled = self.compiled and model is self.model
            self._fast[id(model)] = FastModel(model, self.device, compiled=compiled)
        return self._fast[id(model)]

    def batch(self, attack: StepAttack, source: nn.Module | None, state: State) -> _Batch:
        """A batch that starts from `state`, with the graph of an earlier one of its size where there is one."""
        # Not by name: presets share names of stages that differ.
        key = (id(attack), id(source), len(state["label"]))
        if key in self._recorded:
            self._recorded[key].load(state)
            return self._recorded[key]
        batch = _Batch(attack, self.victim(source), state, compiled=self.compiled, memory=self._memory)
        if batch.cuda:
            self._recorded[key] = batch
        return batch

    def rows(self, jobs: int) -> int:
        """How many rows a batch for so many jobs has: on a GPU one of a few sizes."""
        if self.device.type == "cuda":
            jobs = min((size for size in SIZES if size >= jobs), default=jobs)
        return min(jobs, self.size)


class _Batch:
    """Rows that step together; on CUDA one recorded graph a step, which costs the host nothing."""

    def __init__(self, attack: StepAttack, victim: Victim, state: State, *, compiled: bool, memory: Any) -> None:
        self.victim, self.state, self.memory = victim, state, memory
        # Kept alive, so that no other attack gets the identity that this batch is found by.
        self.made_for = attack
        self.cuda = state["label"].is_cuda
        self.attack = attack.for_rows(len(state["label"]), FULL.get(state["label"].device.type, 1))
        self.query: Callable[..., Tensor] = self.attack.query
        self.update: Callable[..., State] = self.attack.update
        if compiled:
            self.query = torch.compile(self.query, dynamic=True)
            self.update = torch.compile(self.update, dynamic=True)
        self.lookahead = getattr(self.attack, "lookahead", 1)
        self.gradient = self.attack.objective(state) is not None
        self.graph: Any = None
        self.recordable = self.cuda

    def load(self, state: State) -> None:
        for name, value in state.items():
            self.state[name].copy_(value)

    def put(self, rows: Tensor, state: State) -> None:
        for name, value in state.items():
            self.state[name][rows] = value

    def advance(self, steps: int) -> None:
        if self.recordable and self.graph is None:
            self._record()
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.state |= self._stepped(self.state)

    def _stepped(self, state: State) -> State:
        images = self.query(state)
        answer = self.victim.answer(self.attack.objective(state), images, state)
        return {"step": state["step"] + 1} | self.update(state, images, answer)

    def _record(self) -> None:
        """Warm up on a copy, as the recording itself computes nothing."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._stepped({name: value.clone() for name, value in self.state.items()})
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.memory):
                self.load(self._stepped(self.state))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"this model cannot be recorded, so that attacks take longer: {error}", stacklevel=2)
            self.recordable = False
        else:
            self.graph = graph


class _Run:
    """One attack on one set of images. Job k is attempt k // images on image k % images."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        attack: StepAttack,
        shot: Shot,
        source: nn.Module | None,
        watch: Watch | None,
    ) -> None:
        self.engine, self.name, self.attack, self.shot, self.source = engine, name, attack, shot, source
        self.watch = watch or (lambda share, fallen: None)
        self.targets = attack.targets(shot.logits, shot.labels)
        self.images, self.attempts = self.targets.shape
        self.taken = 0
        self.winner = np.full(self.images, self.attempts)
        self.spent = np.full(self.images, self.attempts * attack.evaluations)
        self.outcome = Outcome(
            torch.zeros_like(shot.labels, dtype=torch.bool),
            shot.images.clone(),
            torch.full(shot.labels.shape, -torch.inf, device=shot.images.device),
            torch.zeros_like(shot.labels),
        )

    def run(self) -> Outcome:
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
        self.outcome.queries = self._on_device(self.spent)
        return self.outcome

    # --- jobs -------------------------------------------------------------------------------------

    def _next(self, waiting: Iterator[int], count: int) -> list[int]:
        """Up to `count` jobs on images that no earlier attempt has fooled."""
        found: list[int] = []
        while len(found) < count and (job := next(waiting, None)) is not None:
            self.taken = job + 1
            if job // self.images < self.winner[job % self.images]:
                found.append(job)
        return found

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
            "worst": shot.images.clone(),
            "margin": torch.full_like(shot.eps, -torch.inf),
            "bar": torch.zeros_like(shot.eps),
        }
        return state | self.attack.begin(state, self.shot.logits.shape[1])

    def _batch(self, jobs: list[int]) -> _Batch:
        """Idle rows repeat the first job."""
        rows = self.engine.rows(len(jobs))
        padded = np.array(jobs + [jobs[0]] * (rows - len(jobs)))
        return self.engine.batch(self.attack, self.source, self._begin(padded))

    @staticmethod
    def _padded(jobs: list[int], batch: _Batch) -> np.ndarray:
        job = np.full(len(batch.state["label"]), -1)
        job[: len(jobs)] = jobs
        return job

    def _shrunk(self, batch: _Batch, job: np.ndarray) -> tuple[_Batch, np.ndarray]:
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
        return self.engine.batch(self.attack, self.source, state), job

    # --- results ----------------------------------------------------------------------------------

    def _look(self, state: State, job: np.ndarray) -> np.ndarray:
        """Judge what seems to have fooled the model, keep the worst of what is finished; says which rows are free."""
        margin, bar, step = torch.stack([state["margin"], state["bar"], state["step"].float()]).cpu().numpy()
        running = job >= 0
        promising = np.flatnonzero(running & (margin > bar))
        if len(promising):
            self._judge(state, promising, job, step)
        number, image = np.divmod(job, self.images)
        over = running & (number >= self.winner[image])
        finished = running & ~over & (step >= self.attack.evaluations)
        self._keep(state, np.flatnonzero(finished), image, margin)
        self.watch(self._share(job[running], step[running]), int((self.winner < self.attempts).sum()))
        return over | finished

    def _judge(self, state: State, rows: np.ndarray, job: np.ndarray, step: np.ndarray) -> None:
        """In full precision, on the model itself. A success that is refused raises the bar for the next one."""
        which = self._on_device(rows)
        threat = self.shot.threat.with_eps(state["eps"][which])
        clean, worst = state["clean"][which], threat.project(state["worst"][which], state["clean"][which])
        margin, _ = verdict(self.engine.model, worst, clean, state["label"][which], threat)
        # Where only fast arithmetic overflows, the job goes on from what full precision says.
        seemed = state["margin"][which]
        state["margin"][which] = seemed = seemed.where(seemed < torch.finfo(seemed.dtype).max, margin)
        state["bar"][which] = seemed.clamp_min(0)
        self.engine.passes.add(len(rows), gradient=False)
        won = (margin > 0).cpu().numpy()
        number, image = np.divmod(job[rows], self.images)
        order = np.flatnonzero(won)[np.argsort(number[won], kind="stable")]
        _, first = np.unique(image[order], return_index=True)
        new = order[first]
        new = new[number[new] < self.winner[image[new]]]
        self.winner[image[new]] = number[new]
        made = np.minimum(step[rows[new]], self.attack.evaluations)
        self.spent[image[new]] = number[new] * self.attack.evaluations + made.astype(int)
        at, source = self._on_device(image[new]), self._on_device(new)
        self.outcome.fooled[at] = True
        self.outcome.worst[at], self.outcome.margin[at] = worst[source], margin[source]

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

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64).to(self.shot.images.device)
