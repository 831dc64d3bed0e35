"""Auto-PGD (Croce and Hein 2020): PGD with momentum whose step size is halved when progress stalls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import Objective, cross_entropy
from adaptive_smoothing.attacks.step_attack import (
    Answer,
    State,
    StepAttack,
    choose,
    keep_worst,
    momentum_step,
    random_start,
)
from adaptive_smoothing.threat import Threat

# Progress has stalled in a window if at most this share of its steps increased the loss.
RISING = 0.75
# Lengths of windows as shares of the steps: of the first, the decrease from one to the next, of the shortest.
FIRST, DECREASE, SHORTEST = 0.22, 0.03, 0.06


@dataclass(frozen=True)
class APGD(StepAttack):
    """APGD on any objective, untargeted or with the most likely incorrect classes as targets."""

    threat: Threat
    steps: int = 100
    objective: Objective = cross_entropy
    target_classes: int = 0
    restarts: int = 1
    first_step: float = 2.0  # in units of eps
    from_worst: bool = False  # start from the worst version that earlier attacks have found, not at random
    widest_margin: bool = False
    seed: int = 0

    def begin(self, state: State, classes: int) -> State:
        start = state["worst"].clone() if self.from_worst else random_start(self.threat, state)
        low = torch.full_like(state["eps"], -torch.inf)
        return {
            "iterate": start,
            "previous": start.clone(),
            "gradient": torch.zeros_like(start),
            "step_size": self.first_step * state["eps"],
            "best": start.clone(),
            "best_gradient": torch.zeros_like(start),
            "best_loss": low,
            "last_loss": low.clone(),
            "checked_loss": low.clone(),  # the best loss at the end of the last window
            "window": torch.full_like(state["step"], self._length(FIRST)),
            "window_end": torch.full_like(state["step"], self._length(FIRST)),
            "rises": torch.zeros_like(low),  # the steps of the window that increased the loss
            "reduced": torch.ones_like(low, dtype=torch.bool),  # whether the last window halved the step size
        }

    def query(self, state: State) -> Tensor:
        """Return the start at step 0, then a step with momentum."""
        iterate, first = state["iterate"], state["step"] == 1
        moved = momentum_step(self.threat, state, iterate, state["gradient"], state["step_size"], first)
        return choose(state["step"] == 0, iterate, moved)

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        _, loss, gradient = answer
        assert loss is not None and gradient is not None
        first, better = state["step"] == 0, loss > state["best_loss"]
        new = {
            "previous": state["iterate"],
            "iterate": images,
            "gradient": gradient,
            "best": choose(better, images, state["best"]),
            "best_gradient": choose(better, gradient, state["best_gradient"]),
            "best_loss": torch.where(better, loss, state["best_loss"]),
            "last_loss": loss,
            "checked_loss": torch.where(first, loss, state["checked_loss"]),
            "rises": state["rises"] + (~first & (loss > state["last_loss"])).float(),
        }
        return keep_worst(state, images, answer.logits) | new | self._check_window(state | new)

    def _check_window(self, state: State) -> State:
        """Return the changes at the end of a window: if it stalled, halve the step and return to the best point."""
        ends = state["step"] == state["window_end"]
        stalled = state["rises"] <= RISING * state["window"]
        unimproved = ~state["reduced"] & (state["best_loss"] <= state["checked_loss"])
        reduce = ends & (stalled | unimproved)
        window = (state["window"] - self._length(DECREASE)).clamp_min(self._length(SHORTEST))
        return {
            "iterate": choose(reduce, state["best"], state["iterate"]),
            "gradient": choose(reduce, state["best_gradient"], state["gradient"]),
            "step_size": torch.where(reduce, state["step_size"] / 2, state["step_size"]),
            "checked_loss": torch.where(ends, state["best_loss"], state["checked_loss"]),
            "rises": torch.where(ends, 0.0, state["rises"]),
            "reduced": torch.where(ends, reduce, state["reduced"]),
            "window": torch.where(ends, window, state["window"]),
            "window_end": torch.where(ends, state["window_end"] + window, state["window_end"]),
        }

    def _length(self, share: float) -> int:
        return max(int(share * self.steps), 1)
