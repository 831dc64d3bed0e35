"""The engine: a model on one device, in the fastest arithmetic that is accurate, in batches that fit into memory.

It makes the batches (`job_batch.py`) that the jobs of an attack (`jobs.py`) are run in, and keeps them for the next
images. An arithmetic (`arithmetic.py`) is the precision in which the model is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION, Arithmetic, FastModel, fast_arithmetics
from adaptive_smoothing.attacks.engine.job_batch import JobBatch, Victim
from adaptive_smoothing.attacks.engine.recorder import Recorder
from adaptive_smoothing.attacks.step_attack import State, StepAttack
from adaptive_smoothing.attacks.views import MakeView
from adaptive_smoothing.models.contract import frozen
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.models.memory import batch_bytes, bytes_per_image
from adaptive_smoothing.settings.checks import warn_user

# Rows of a batch of images of CIFAR's size, and how many such images keep a device busy, by type of device.
BATCH, OTHER_BATCH = {"cuda": 2048, "cpu": 32}, 256
BUSY, OTHER_BUSY = {"cuda": 1024, "cpu": 32}, 1
CIFAR_PIXELS = 3 * 32 * 32
SMALLEST_BATCH = 8
# The memory of a gradient step, as a multiple of what its forward pass keeps for the backward pass.
TRANSIENT = 1.1
# Images on which fast arithmetic is compared with full precision.
PROBE_IMAGES = 8
# Batch sizes on a GPU, where each size is recorded once. Between two powers of two there are sixteen equal steps, and
# below 16 all sizes.
SIZES = (*range(8, 16), *(sixteenths * 2**power for power in range(12) for sixteenths in range(16, 32)))
# Sizes for the largest batch: powers of two, and the sizes halfway between them.
LARGEST_SIZES = SIZES[::8]
# In fast arithmetic on a GPU, a step takes the same time for any smaller number of images of CIFAR's size.
FEW = 32


@dataclass
class Passes:
    """The number of images that went through the model, idle rows of a batch included."""

    forward: int = 0
    backward: int = 0

    def add(self, images: int, gradient: bool) -> None:
        self.forward += images
        self.backward += images * gradient


@dataclass
class Engine:
    """A model prepared for attacks on one device. Compiled and recorded functions are kept for the next images.

    The weights of the model must not change as long as the engine is used.
    """

    model: nn.Module
    device: torch.device
    batch_size: int | None = None  # rows of a batch; None: chosen for the device and the size of the images
    compiled: bool = False
    precise: bool = False  # attack in full precision only
    # Returns the images that the arithmetic is chosen on; None: the first images under attack.
    examples: Callable[[], Tensor] | None = None
    passes: Passes = field(default_factory=Passes)

    def __post_init__(self) -> None:
        # The current number of rows; it is reduced for large images and when memory runs out.
        self.size = self.batch_size or BATCH.get(self.device.type, OTHER_BATCH)
        self._views: dict[MakeView, nn.Module] = {}
        self._arithmetic = FULL_PRECISION if self.precise else None
        self._fast: dict[tuple[int, Arithmetic], FastModel] = {}
        self._recorded: dict[tuple[int, int, Arithmetic, int], JobBatch] = {}
        self._row_bytes: int | None = None  # memory of one row on a GPU, once it is measured
        self._recorder = self._new_recorder()

    def _new_recorder(self) -> Recorder | None:
        return Recorder(self.device) if self.device.type == "cuda" else None

    def arithmetic(self, inputs: AttackInput) -> Arithmetic:
        """Return the fastest arithmetic that is accurate enough for the model; it is chosen once."""
        if self._arithmetic is None:
            images = inputs.images if self.examples is None else self.examples()
            images = images[: min(PROBE_IMAGES, self.size)]
            logits, candidates = fp32_logits(self.model, images), fast_arithmetics(self.device)
            accurate = (candidate for candidate in candidates if candidate.is_accurate(self.model, images, logits))
            self._arithmetic = next(accurate, FULL_PRECISION)
            if self._arithmetic == FULL_PRECISION:
                tried, share = " and ".join(candidate.name for candidate in candidates), 1 / candidates[-1].tolerance
                message = f"{tried} logits differ by more than 1/{share:g} of their spread; using float32"
                warn_user(message)
        return self._arithmetic

    def run_with_retries(
        self, inputs: AttackInput, source: MakeView | None, work: Callable[[nn.Module | None], AttackOutcome]
    ) -> AttackOutcome:
        """Return work(view of the model); repeat it with smaller batches if memory runs out.

        All weights are frozen during the work. Without a `source`, the view is None.
        """
        while True:
            try:
                # Graphs are recorded on the current device, whichever device their tensors are on.
                current = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
                with frozen(self.model), current:
                    if self.batch_size is None:
                        self.size = min(self.size, self._fitting_rows(inputs))
                    view = None if source is None else self._view(source)
                    with frozen(*filter(None, (view,))):
                        return work(view)
            except RuntimeError as error:
                self._adapt(error)
            # Outside of the handler, because the error keeps the tensors of the failed attempt alive.
            self._fast.clear()
            self._recorded.clear()
            self._recorder = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._recorder = self._new_recorder()

    def _view(self, source: MakeView) -> nn.Module:
        if source not in self._views:
            self._views[source] = source(self.model)
        return self._views[source]

    def _adapt(self, error: RuntimeError) -> None:
        """Change the settings after an error: smaller batches, or no compilation. Raise it if this cannot help."""
        if isinstance(error, torch.OutOfMemoryError) and self.size > 1:
            self.size //= 2
        # Importing the compiler's error classes would take two seconds.
        elif self.compiled and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            warn_user(f"this model cannot be compiled, so attacks take longer: {error}")
            self.compiled = False
        else:
            raise error

    def close(self) -> None:
        """Delete views, compiled and recorded functions. The engine must not be used afterwards."""
        for kept in (self._views, self._fast, self._recorded):
            kept.clear()
        self._recorder = None

    def rows(self, jobs: int, arithmetic: Arithmetic, pixels: int) -> int:
        """Return the number of rows of a batch for so many jobs on images of a size: on a GPU one of `SIZES`."""
        if self.device.type == "cuda":
            few = SMALLEST_BATCH if arithmetic == FULL_PRECISION else FEW * CIFAR_PIXELS // pixels
            jobs = min((size for size in SIZES if size >= max(jobs, few)), default=jobs)
        return min(jobs, self.size)

    def batch(self, attack: StepAttack, view: nn.Module | None, arithmetic: Arithmetic, state: State) -> JobBatch:
        """Return a batch that starts from `state`; on a GPU, an earlier batch of the same size is used again."""
        # The attack is found by its id and not by the key of its stage, because presets share keys.
        key = (id(attack), id(view), arithmetic, len(state["label"]))
        if key in self._recorded:
            self._recorded[key].load(state)
            return self._recorded[key]
        fast_view = None if view is None else self._fast_model(view, arithmetic)
        victim = Victim(self._fast_model(self.model, arithmetic), fast_view, arithmetic)
        batch = JobBatch(attack, victim, state, self._capacity(state), self._compiles(arithmetic), self._recorder)
        if batch.cuda:
            self._recorded[key] = batch
        return batch

    def _fast_model(self, model: nn.Module, arithmetic: Arithmetic) -> FastModel:
        key = (id(model), arithmetic)
        if key not in self._fast:
            # Attacks on a view are too short to make up for the time of compiling it.
            compiled = model is self.model and self._compiles(arithmetic)
            self._fast[key] = FastModel(model, self.device, arithmetic, compiled=compiled, fixed_weights=True)
        return self._fast[key]

    def _compiles(self, arithmetic: Arithmetic) -> bool:
        """Return whether to compile: only the fastest arithmetic.

        The others are used for a few images, or are TF32, with which torch 2.9 to 2.11 cannot compile.
        """
        return self.compiled and arithmetic == fast_arithmetics(self.device)[0]

    def _fitting_rows(self, inputs: AttackInput) -> int:
        """Return the number of rows that fit: on a GPU by the memory of the model, otherwise by the size of images."""
        usual = BATCH.get(self.device.type, OTHER_BATCH)
        if self.device.type == "cuda" and self._row_bytes is None:
            self._row_bytes = self._measured_row_bytes(inputs)
        if self._row_bytes is None:
            return max(SMALLEST_BATCH, usual * CIFAR_PIXELS // inputs.images[0].numel())
        fitting = int(batch_bytes(self.device) / (TRANSIENT * self._row_bytes))
        return max((size for size in LARGEST_SIZES if size <= min(usual, fitting)), default=SMALLEST_BATCH)

    def _measured_row_bytes(self, inputs: AttackInput) -> int | None:
        model = FastModel(self.model, self.device, self.arithmetic(inputs))
        try:
            return bytes_per_image(model, inputs.images)
        except torch.OutOfMemoryError:  # a few images do not fit: start with the smallest batch
            return batch_bytes(self.device)

    def _capacity(self, state: State) -> int:
        """Return how many images keep the device busy, at most the batch size."""
        return min(BUSY.get(self.device.type, OTHER_BUSY) * CIFAR_PIXELS // state["clean"][0].numel(), self.size)
