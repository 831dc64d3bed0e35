"""PGD with output-diversified starts (Tashiro et al. 2020): the short attacks of the `fast` preset.

For a few steps, a job maximises a random combination of the logits, so that the jobs of an image explore different
outputs. Then it maximises the objective, with step sizes that decrease to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import LossLogits, Model, Objective, margin
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, keep_worst, momentum_step, random_start
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import Threat

# Steps between two checks of an untargeted attack. The first step fools most of the images that such an attack fools.
EARLY_CHECK = 2


@dataclass(frozen=True)
class DiversifiedPGD(StepAttack):
    """PGD with momentum from a random start: `diversify` steps on a random combination of logits, then `steps`."""

    threat: Threat
    steps: int = 20
    objective: Objective = margin
    target_classes: int = 0
    restarts: int = 1
    diversify: int = 0
    first_step: float = 2.0  # in units of eps
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.diversify + self.steps + 1

    @property
    def check_every(self) -> int:
        return super().check_every if self.target_classes else EARLY_CHECK

    def current_objective(self, state: State) -> Objective:
        def diverse_first(model: Model, images: Tensor, labels: Tensor, targets: Tensor) -> LossLogits:
            loss, logits = self.objective(model, images, labels, targets)
            diverse = (logits.float() * state["direction"]).sum(1)
            return torch.where(state["step"] < self.diversify, diverse, loss), logits

        return diverse_first

    def begin(self, state: State, classes: int) -> State:
        start = random_start(self.threat, state)
        direction = 2 * uniform(fold(state["key"], 1), classes) - 1
        return {"iterate": start, "previous": start.clone(), "direction": direction}

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        step, eps = state["step"], state["eps"]
        size, first = self._step_size(step).to(eps) * eps, step <= self.diversify
        following = momentum_step(self.threat, state, images, answer.gradient, size, first)
        return keep_worst(state, images, answer.logits) | {"iterate": following, "previous": images}

    def _step_size(self, step: Tensor) -> Tensor:
        """Return the step size in units of eps: 1 while diversifying, then half a cosine from `first_step` to 0."""
        done = ((step - self.diversify) / self.steps).clamp(0, 1)
        return torch.where(step < self.diversify, 1.0, self.first_step * (1 + torch.cos(torch.pi * done)) / 2)
