"""An attack as the engine runs it: many jobs side by side, one step of all of them at a time.

A job is one attempt on one image: a target class, a random start. The jobs of a batch live in a `State`, tensors
with one row a job, among them

    clean, label, eps     the image, its class, the radius around it
    target                the class to reach, for attacks that have one
    key                   what its random numbers are drawn from: seed, attack, image and number of the job
    step                  how many steps it has made
    worst, margin         the worst iterate so far inside the ball, and its margin (positive: misclassified)

and whatever the attack keeps for itself. Rows know nothing of each other and of when they began, so a job ends the
same in any batch. A step returns the tensors it changed, looks at no value and makes no choice on the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.objectives import Objective
from adaptive_smoothing.threat import Threat

State = dict[str, Tensor]

# The host looks at a batch this often, in steps: a look stops the device, and a job that is done waits for it.
LOOK = 17


@dataclass(frozen=True)
class Victim:
    """The model under attack, and where gradients come from: the model itself, or another that it is transferred from."""

    model: Callable[[Tensor], Tensor]
    source: Any = None

    def climb(self, objective: Objective, images: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, its gradient, and the logits of the model under attack, from one pass of each network."""
        with torch.enable_grad():
            images = images.detach().requires_grad_()
            source = self.model if self.source is None else self.source
            loss, logits = objective(source, images, state["label"], state.get("target"))
            (gradient,) = torch.autograd.grad(loss.sum(), images)
        if self.source is not None:
            logits = self.predict(images)
        return loss.detach(), gradient, logits.detach()

    def predict(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(images.detach())


class StepAttack(ABC):
    """What the engine needs of an attack."""

    threat: Threat
    seed: int
    # Forward and backward passes of a step.
    forwards: int = 1
    backwards: int = 1

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """How many steps a job takes."""

    @property
    def look_every(self) -> int:
        """Steps between two looks of the host, so that the last one falls on the end of a job."""
        looks = max(1, round(self.evaluations / LOOK))
        return -(-self.evaluations // looks)

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[images, jobs]: the target of each job, or the label where there is none; in the order they are tried."""
        return labels[:, None]

    @abstractmethod
    def begin(self, state: State, classes: int) -> State:
        """What the attack keeps for itself, before the first step."""

    @abstractmethod
    def step(self, victim: Victim, state: State) -> State:
        """The tensors that a step changes."""


def most_likely_targets(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """[images, at most count]: the wrong classes, the most likely first."""
    wrong = logits.float().scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices


def keep_worst(state: State, images: Tensor, logits: Tensor, inside: Tensor | None = None) -> State:
    """The iterates that are worse than those kept so far, where they are `inside` the ball.

    Not a number is the worst of all: it must reach the verdict, which refuses it.
    """
    margin = logit_margin(logits, state["label"]).nan_to_num(nan=torch.inf)
    worse = margin > state["margin"] if inside is None else inside & (margin > state["margin"])
    return {
        "worst": choose(worse, images.detach(), state["worst"]),
        "margin": torch.where(worse, margin, state["margin"]),
    }


def choose(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`torch.where` image by image."""
    return torch.where(which.view(-1, *[1] * (yes.dim() - 1)), yes, no)


def column(values: Tensor, images: Tensor) -> Tensor:
    """One number per image, shaped to broadcast against images."""
    return values.view(-1, *[1] * (images.dim() - 1))
