"""Margin PGD with output-diversified starts (Tashiro et al. 2020): the short attacks of the `fast` preset.

A job first climbs a random combination of the logits for a few steps, which carries it to a place where the model
says something else, and then the margin, with steps that shrink to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import Objective, margin
from adaptive_smoothing.attacks.step_attack import (
    Answer,
    State,
    StepAttack,
    column,
    keep_worst,
    random_start,
    targets_with_restarts,
)
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import Threat

MOMENTUM = 0.25
# Where all images are still in line: most of those that an untargeted attack ever takes fall to its first step.
EARLY_LOOK = 2


@dataclass(frozen=True)
class DiversifiedPGD(StepAttack):
    """`diversify` steps on a random combination of logits, then `steps` on what there is to `climb`.

    `target_classes` > 0 tries that many of the most likely wrong classes, each `restarts` times; 0 goes untargeted.
    Without diversification the first steps start from a random point of the ball all the same.
    """

    threat: Threat
    steps: int = 20
    climb: Objective = margin
    target_classes: int = 0
    restarts: int = 1
    diversify: int = 0
    first_step: float = 2.0
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.diversify + self.steps + 1

    @property
    def look_every(self) -> int:
        return super().look_every if self.target_classes else EARLY_LOOK

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        return targets_with_restarts(logits, labels, self.target_classes, self.restarts)

    def objective(self, state: State) -> Objective:
        def diverse_first(
            model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, targets: Tensor
        ) -> tuple[Tensor, Tensor]:
            loss, logits = self.climb(model, images, labels, targets)
            diverse = (logits.float() * state["direction"]).sum(1)
            return torch.where(state["step"] < self.diversify, diverse, loss), logits

        return diverse_first

    def begin(self, state: State, classes: int) -> State:
        start = random_start(self.threat, state)
        direction = 2 * uniform(fold(state["key"], 1), classes) - 1
        return {"iterate": start, "previous": start.clone(), "direction": direction}

    def query(self, state: State) -> Tensor:
        return state["iterate"]

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        clean, threat = state["clean"], self.threat.with_eps(state["eps"])
        size = column(self._step_size(state["step"]) * state["eps"], images)
        ahead = threat.project(images + size * threat.steepest(answer.gradient), clean)
        kept = column(torch.where(state["step"] <= self.diversify, 0.0, MOMENTUM), images)
        following = images + (1 - kept) * (ahead - images) + kept * (images - state["previous"])
        moved = {"iterate": threat.project(following, clean), "previous": images}
        return keep_worst(state, images, answer.logits) | moved

    def _step_size(self, step: Tensor) -> Tensor:
        """In units of eps: whole steps first, then half a cosine from `first_step` down to nothing."""
        gone = ((step - self.diversify) / self.steps).clamp(0, 1)
        return torch.where(step < self.diversify, 1.0, self.first_step * (1 + torch.cos(torch.pi * gone)) / 2)
