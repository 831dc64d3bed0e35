"""A batch of jobs that step together, and the model that answers them.

On CUDA a step is one recorded graph, which costs the host almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.engine.arithmetic import DEFAULT_FLOAT32, Arithmetic
from adaptive_smoothing.attacks.engine.recorder import Recorder, RecordingError
from adaptive_smoothing.attacks.objectives import Model, Objective, loss_and_gradient
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack
from adaptive_smoothing.models.inference import compiled_for_any_size
from adaptive_smoothing.settings.checks import warn_user

ALL_ROWS = slice(None)


@dataclass(frozen=True)
class Victim:
    """The model under attack, and the view that gradients come from, if it is not the model itself."""

    model: Model
    view: Model | None = None
    arithmetic: Arithmetic = DEFAULT_FLOAT32

    def answer(self, objective: Objective | None, images: Tensor, state: State) -> Answer:
        """Return the answer to one step, with one pass of each network."""
        with self.arithmetic.float32_context():
            loss = gradient = None
            if objective is not None:
                classes = state["label"], state["target"]
                loss, logits, gradient = loss_and_gradient(objective, self.view or self.model, images, *classes)
            if objective is None or self.view is not None:
                with torch.no_grad():
                    logits = self.model(images.detach())
            return Answer(logits.detach(), loss, gradient)


@dataclass(eq=False)
class JobBatch:
    """Jobs, one per row, that step together. `attack` is `made_for`, adapted to the number of rows."""

    made_for: StepAttack  # kept alive, so that no other attack gets its id, by which the engine finds this batch
    victim: Victim
    state: State
    capacity: int = 1  # how many images keep the device busy
    compiled: bool = False
    recorder: Recorder | None = None  # None: steps are not recorded

    def __post_init__(self) -> None:
        self.cuda = self.state["label"].is_cuda
        self.attack = self.made_for.for_rows(len(self.state["label"]), self.capacity)
        self.query: Callable[[State], Tensor] = self.attack.query
        self.update: Callable[[State, Tensor, Answer], State] = self.attack.update
        if self.compiled:
            self.query = compiled_for_any_size(self.query)
            self.update = compiled_for_any_size(self.update)
        self.gradient = self.attack.current_objective(self.state) is not None
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, state: State, rows: Tensor | slice = ALL_ROWS) -> None:
        """Replace rows of the state, keeping the memory of its tensors."""
        for name, value in state.items():
            self.state[name][rows] = value

    def advance(self, steps: int) -> None:
        """Make `steps` steps of all jobs."""
        if self.recorder is not None and self.graph is None:
            self._record(self.recorder)
            steps -= 1
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.state |= self._stepped(self.state)

    def _stepped(self, state: State) -> State:
        """Return the tensors that one step changes."""
        images = self.query(state)
        answer = self.victim.answer(self.attack.current_objective(state), images, state)
        return {"step": state["step"] + 1} | self.update(state, images, answer)

    def step_in_place(self) -> None:
        """Make a step that keeps the memory of every tensor of the state, as a recorded graph requires."""
        mine = {value.data_ptr() for value in self.state.values()}
        new = self._stepped(self.state)
        # A new value that is another tensor of the state must be copied before that tensor is overwritten.
        self.load({name: value.clone() if value.data_ptr() in mine else value for name, value in new.items()})

    def _record(self, recorder: Recorder) -> None:
        """Make a step, and record one if the model can be recorded."""
        try:
            self.graph = recorder.record(self.step_in_place)
        except RecordingError as error:
            warn_user(f"this model cannot be recorded, so attacks take longer: {error}")
            self.recorder = None
