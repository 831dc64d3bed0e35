"""Margin PGD with output-diversified starts (Tashiro et al. 2020): the short attacks of the `fast` preset.

A job first climbs a random combination of the logits for a few steps, which carries it to a place where the model
says something else, and then the margin, with steps that shrink to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from adaptive_smoothing.attacks.losses import Loss, margin_loss
from adaptive_smoothing.attacks.steps import State, StepAttack, Victim, column, keep_worst, most_likely_targets
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import Threat

MOMENTUM = 0.25


@dataclass(frozen=True)
class DiversifiedPGD(StepAttack):
    """`diversify` steps on a random combination of logits, then `steps` on `loss`.

    `target_classes` > 0 tries that many of the most likely wrong classes, each `restarts` times; 0 goes untargeted.
    Without diversification the first steps start from a random point of the ball all the same.
    """

    threat: Threat
    steps: int = 20
    loss: Loss = margin_loss
    target_classes: int = 0
    restarts: int = 1
    diversify: int = 0
    first_step: float = 2.0
    seed: int = 0
    sizes: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        climbing = [self.first_step * (1 + math.cos(math.pi * step / self.steps)) / 2 for step in range(self.steps)]
        object.__setattr__(self, "sizes", (*[1.0] * self.diversify, *climbing, 0.0))

    @property
    def evaluations(self) -> int:
        return self.diversify + self.steps + 1

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        classes = most_likely_targets(logits, labels, self.target_classes) if self.target_classes else labels[:, None]
        return classes.repeat(1, self.restarts)

    def begin(self, state: State, classes: int) -> State:
        clean, threat = state["clean"], self.threat.with_eps(state["eps"])
        noise = uniform(state["key"], clean[0].numel()).view_as(clean)
        start = threat.project(clean + threat.on_the_surface(noise), clean)
        direction = 2 * uniform(fold(state["key"], 1), classes) - 1
        return {"iterate": start, "previous": start.clone(), "direction": direction}

    def step(self, victim: Victim, state: State) -> State:
        clean, x, threat = state["clean"], state["iterate"], self.threat.with_eps(state["eps"])
        _, gradient, logits = victim.climb(self._objective(state), x, state)
        size = _table(self.sizes, x.device)[state["step"].clamp(max=len(self.sizes) - 1)] * state["eps"]
        ahead = threat.project(x + column(size, x) * threat.steepest(gradient), clean)
        kept = column(torch.where(state["step"] <= self.diversify, 0.0, MOMENTUM), x)
        following = threat.project(x + (1 - kept) * (ahead - x) + kept * (x - state["previous"]), clean)
        return keep_worst(state, x, logits) | {"iterate": following, "previous": x}

    def _objective(self, state: State):  # type: ignore[no-untyped-def]
        def objective(model, images, labels, targets):  # type: ignore[no-untyped-def]
            logits = model(images)
            diverse = (logits.float() * state["direction"]).sum(1)
            return torch.where(state["step"] < self.diversify, diverse, self.loss(logits, labels, targets)), logits

        return objective


@lru_cache
def _table(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)
