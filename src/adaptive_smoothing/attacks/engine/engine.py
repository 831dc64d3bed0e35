"""The engine: attacks a model on one device, in full batches and fast arithmetic, and keeps what it has prepared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.engine.arithmetic import FULL, Arithmetic, FastModel, fast, frozen
from adaptive_smoothing.attacks.engine.job_batch import JobBatch
from adaptive_smoothing.attacks.engine.jobs import Jobs, Watch
from adaptive_smoothing.attacks.step_attack import State, StepAttack, Victim
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits

# Rows of a batch of CIFAR's size: two cores are full with some dozens.
BATCH = {"cuda": 2048, "cpu": 32}
# Fewer images of that size than these take a device as long, or nearly.
BUSY = {"cuda": 1024, "cpu": 32}
CIFAR_PIXELS = 3 * 32 * 32
# Images on which fast arithmetic is compared with the model itself.
TRIED = 8
# Sizes a batch can have on a GPU, where each has to be recorded once: a third apart.
SIZES = tuple(size for power in range(5, 16) for size in (2**power, 3 * 2 ** (power - 1)))

View = Callable[[nn.Module], nn.Module]


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
    """Attacks `model` on one device. It keeps what it has compiled and recorded, so that the next images go faster.

    On `examples`, or on the first images it is given, it sees which arithmetic will do for the model.
    """

    model: nn.Module
    device: torch.device
    batch_size: int | None = None
    compiled: bool = False
    precise: bool = False
    examples: Callable[[], Tensor] | None = None
    passes: Passes = field(default_factory=Passes)

    def __post_init__(self) -> None:
        self.size = self.batch_size or BATCH.get(self.device.type, 256)
        self._views: dict[View, nn.Module] = {}
        self._arithmetic = FULL if self.precise else None
        self._fast: dict[tuple[int, Arithmetic], FastModel] = {}
        self._recorded: dict[tuple[int, int, Arithmetic, int], JobBatch] = {}
        # Recorded graphs take turns, and nothing outlives a replay: they can all work in the same memory.
        self._memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def run(
        self,
        name: str,
        attack: StepAttack,
        shot: AttackInput,
        *,
        source: View | None = None,
        precise: bool = False,
        watch: Watch | None = None,
    ) -> AttackOutcome:
        """Attack every image of `shot`; `name` is what the random numbers are keyed by.

        A `precise` attack is made in full precision, and takes several times as long; a `precise` engine makes no
        other. `watch` is told now and then the share of the work that is done, and how many images have fallen.
        """

        def work(view: nn.Module | None) -> AttackOutcome:
            arithmetic = FULL if precise else self.arithmetic(shot)
            try:
                return Jobs(self, name, attack, shot, view, arithmetic, watch).run()
            except NotFiniteError:
                if arithmetic == FULL:
                    raise
                warnings.warn(f"fast arithmetic cannot hold the gradient: {name} in full precision", stacklevel=4)
                return Jobs(self, name, attack, shot, view, FULL, watch).run()

        return self.retried(shot, source, work)

    def arithmetic(self, shot: AttackInput) -> Arithmetic:
        """The fastest that will do for this model, which is tried once."""
        if self._arithmetic is None:
            images = shot.images[: min(TRIED, self.size)] if self.examples is None else self.examples()
            logits = fp32_logits(self.model, images)
            will_do = (found for found in fast(self.device) if not found.strays(self.model, images, logits))
            self._arithmetic = next(will_do, FULL)
            if self._arithmetic == FULL:
                warnings.warn(
                    "in fast arithmetic this model is another one: attacks are made in full precision", stacklevel=5
                )
        return self._arithmetic

    def retried(
        self, shot: AttackInput, source: View | None, work: Callable[[nn.Module | None], AttackOutcome]
    ) -> AttackOutcome:
        """Work on a view of the model, frozen, until the batches are small enough for it."""
        if self.batch_size is None:
            pixels = shot.images[0].numel()
            self.size = min(self.size, max(8, BATCH.get(self.device.type, 256) * CIFAR_PIXELS // pixels))
        while True:
            try:
                view = self.view(source)
                with frozen(*filter(None, (self.model, view))), self._current():
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

    def _current(self) -> AbstractContextManager[Any]:
        """Graphs are recorded on the current device, whichever their tensors are on."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

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

    def victim(self, source: nn.Module | None, arithmetic: Arithmetic) -> Victim:
        model = self._fast_model(self.model, arithmetic)
        return Victim(model, None if source is None else self._fast_model(source, arithmetic), arithmetic)

    def _fast_model(self, model: nn.Module, arithmetic: Arithmetic) -> FastModel:
        key = (id(model), arithmetic)
        if key not in self._fast:
            # A view is attacked too shortly to win back the time of compiling.
            compiled = model is self.model and self._compiles(arithmetic)
            self._fast[key] = FastModel(model, self.device, arithmetic, compiled=compiled)
        return self._fast[key]

    def _compiles(self, arithmetic: Arithmetic) -> bool:
        """What is slower is for a few images, or for TF32, which torch's compiler trips over (2.9 to 2.11)."""
        return self.compiled and arithmetic == fast(self.device)[0]

    def batch(self, attack: StepAttack, source: nn.Module | None, arithmetic: Arithmetic, state: State) -> JobBatch:
        """A batch that starts from `state`, with the graph of an earlier one of its size where there is one."""
        # Not by name: presets share names of stages that differ.
        key = (id(attack), id(source), arithmetic, len(state["label"]))
        if key in self._recorded:
            self._recorded[key].load(state)
            return self._recorded[key]
        victim, compiled = self.victim(source, arithmetic), self._compiles(arithmetic)
        batch = JobBatch(attack, victim, state, full=self._full(state), compiled=compiled, memory=self._memory)
        if batch.cuda:
            self._recorded[key] = batch
        return batch

    def _full(self, state: State) -> int:
        """How many images keep the device busy, and are not more than it may be given."""
        return min(BUSY.get(self.device.type, 1) * CIFAR_PIXELS // state["clean"][0].numel(), self.size)

    def rows(self, jobs: int) -> int:
        """How many rows a batch for so many jobs has: on a GPU one of a few sizes."""
        if self.device.type == "cuda":
            jobs = min((size for size in SIZES if size >= jobs), default=jobs)
        return min(jobs, self.size)
