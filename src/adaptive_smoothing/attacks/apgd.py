"""Auto-PGD (Croce and Hein 2020): steps with momentum, whose size halves when progress stalls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import Objective, cross_entropy
from adaptive_smoothing.attacks.steps import State, StepAttack, Victim, choose, column, keep_worst, most_likely_targets
from adaptive_smoothing.noise import uniform
from adaptive_smoothing.threat import Threat

MOMENTUM = 0.25
# A window in which at most this share of the steps climbed has stalled.
RISING = 0.75


@dataclass(frozen=True)
class APGD(StepAttack):
    """`target_classes` > 0 tries that many of the most likely wrong classes in turn, with a targeted objective."""

    threat: Threat
    steps: int = 100
    objective: Objective = cross_entropy
    target_classes: int = 0
    restarts: int = 1
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.steps + 1

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        classes = most_likely_targets(logits, labels, self.target_classes) if self.target_classes else labels[:, None]
        return classes.repeat(1, self.restarts)

    def begin(self, state: State, classes: int) -> State:
        clean, threat = state["clean"], self.threat.with_eps(state["eps"])
        noise = uniform(state["key"], clean[0].numel()).view_as(clean)
        start = threat.project(clean + threat.on_the_surface(noise), clean)
        zeros, low = torch.zeros_like(state["eps"]), torch.full_like(state["eps"], -torch.inf)
        return {
            "iterate": start,
            "previous": start.clone(),
            "gradient": torch.zeros_like(clean),
            "step_size": 2 * state["eps"],
            "best": start.clone(),
            "best_gradient": torch.zeros_like(clean),
            "best_loss": low,
            "last_loss": low.clone(),
            "checked_loss": low.clone(),
            "rises": zeros,
            "reduced": torch.ones_like(zeros, dtype=torch.bool),
        }

    def step(self, victim: Victim, state: State) -> State:
        first = state["step"] == 0
        iterate = choose(first, state["iterate"], self._move(state))
        loss, gradient, logits = victim.climb(self.objective, iterate, state)
        better = loss > state["best_loss"]
        seen = state | {
            "previous": state["iterate"],
            "iterate": iterate,
            "gradient": gradient,
            "best": choose(better, iterate, state["best"]),
            "best_gradient": choose(better, gradient, state["best_gradient"]),
            "best_loss": torch.where(better, loss, state["best_loss"]),
            "last_loss": loss,
            "checked_loss": torch.where(first, loss, state["checked_loss"]),
            "rises": state["rises"] + (~first & (loss > state["last_loss"])).float(),
        }
        return keep_worst(state, iterate, logits) | self._check(seen)

    def _move(self, state: State) -> Tensor:
        x, clean, threat = state["iterate"], state["clean"], self.threat.with_eps(state["eps"])
        ahead = threat.project(x + column(state["step_size"], x) * threat.steepest(state["gradient"]), clean)
        # The first step has no momentum yet.
        kept = column(torch.where(state["step"] == 1, 0.0, MOMENTUM), x)
        return threat.project(x + (1 - kept) * (ahead - x) + kept * (x - state["previous"]), clean)

    def _check(self, state: State) -> State:
        """At the end of a window: where it stalled, halve the step and go back to the best point."""
        window = _windows(self.steps, state["step"].device)[state["step"].clamp(max=self.steps)]
        ends = window > 0
        stalled = state["rises"] <= RISING * window
        unimproved = ~state["reduced"] & (state["best_loss"] <= state["checked_loss"])
        reduce = ends & (stalled | unimproved)
        return {
            "previous": state["previous"],
            "iterate": choose(reduce, state["best"], state["iterate"]),
            "gradient": choose(reduce, state["best_gradient"], state["gradient"]),
            "step_size": torch.where(reduce, state["step_size"] / 2, state["step_size"]),
            "best": state["best"],
            "best_gradient": state["best_gradient"],
            "best_loss": state["best_loss"],
            "last_loss": state["last_loss"],
            "checked_loss": torch.where(ends, state["best_loss"], state["checked_loss"]),
            "rises": torch.where(ends, 0.0, state["rises"]),
            "reduced": torch.where(ends, reduce, state["reduced"]),
        }


@lru_cache
def _windows(steps: int, device: torch.device) -> Tensor:
    """For each step the length of the window that ends with it, or 0: 22 % of the steps first, then shorter."""
    lengths = [0.0] * (steps + 1)
    length, end = max(int(0.22 * steps), 1), 0
    while (end := end + length) <= steps:
        lengths[end] = float(length)
        length = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return torch.tensor(lengths, device=device)
