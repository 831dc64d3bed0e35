"""Rows that step together, on CUDA as one recorded graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaptive_smoothing.attacks.step_attack import State, StepAttack, Victim


class JobBatch:
    """Rows that step together; on CUDA one recorded graph a step, which costs the host nothing."""

    def __init__(
        self, attack: StepAttack, victim: Victim, state: State, *, full: int, compiled: bool, memory: Any
    ) -> None:
        self.victim, self.state, self.memory = victim, state, memory
        # Kept alive, so that no other attack gets the identity that this batch is found by.
        self.made_for = attack
        self.cuda = state["label"].is_cuda
        self.attack = attack.for_rows(len(state["label"]), full)
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

    def step_in_place(self) -> None:
        """As a recorded graph has to: every tensor of the state keeps its place."""
        mine = {value.data_ptr() for value in self.state.values()}
        new = self._stepped(self.state)
        # What was another tensor of the state must be saved before that one is overwritten.
        self.load({name: value.clone() if value.data_ptr() in mine else value for name, value in new.items()})

    def _record(self) -> None:
        """Warm up on a copy, as the recording itself computes nothing."""
        stream = torch.cuda.Stream(self.state["label"].device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._stepped({name: value.clone() for name, value in self.state.items()})
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.memory, stream=stream):
                self.step_in_place()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"this model cannot be recorded, so that attacks take longer: {error}", stacklevel=2)
            self.recordable = False
        else:
            self.graph = graph
