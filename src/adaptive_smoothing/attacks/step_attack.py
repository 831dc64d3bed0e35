"""The interface of an attack that the engine runs: many jobs in one batch, one step of all of them at a time.

A job is one attempt on one image, with a target class and a random start. The jobs of a batch are in a `State`: tensors
with one row per job.

    clean, label, eps     the image, its class, the radius around it
    target                the class to reach, for targeted attacks
    key                   of its random numbers: derived from the seed, the attack, the image and the attempt
    step, end             the number of steps made, and how many there are to be
    worst, margin         the worst iterate inside the ball and its margin (positive: misclassified); before the first
                          step the worst version that earlier attacks have found
    threshold             the margin above which a success is to be confirmed: 0, or that of a success that was not

An attack adds tensors of its own. A step asks the model about one image (`query`) and uses the answer (`update`). Rows
do not depend on each other or on when they began, so a job has the same result in any batch. Neither function reads a
value on the host, so both can be compiled and recorded in a CUDA graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import Objective, logit_margin
from adaptive_smoothing.noise import uniform
from adaptive_smoothing.threat import Threat, column

State = dict[str, Tensor]

# Steps between two checks by the host: a check stops the device, and a finished job waits for it.
CHECK_INTERVALS = range(5, 9)


class Answer(NamedTuple):
    """The model's logits for the images of a step; for attacks with an objective also its loss and gradient."""

    logits: Tensor
    loss: Tensor | None = None
    gradient: Tensor | None = None


class StepAttack(ABC):
    """An attack that the engine can run."""

    threat: Threat
    seed: int
    steps: int
    objective: Objective | None = None  # what steps maximise; None for an attack that uses no gradient
    target_classes: int = 0  # how many of the most likely wrong classes to try in turn; 0: untargeted
    restarts: int = 1
    lookahead: int = 1  # images per job that a step evaluates
    widest_margin: bool = False  # continue jobs to their end on fooled images as well, to find the widest margin

    @property
    def evaluations(self) -> int:
        """The number of steps of a job, that at the start included."""
        return self.steps + 1

    @property
    def check_every(self) -> int:
        """Steps between two checks by the host, chosen so that the last check comes soon after the end of a job."""
        return min(CHECK_INTERVALS, key=lambda steps: -self.evaluations % steps)

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return [images, attempts]: the target of each attempt, in order, or the label for an untargeted one."""
        once = most_likely_targets(logits, labels, self.target_classes) if self.target_classes else labels[:, None]
        return once.repeat(1, self.restarts)

    def for_rows(self, rows: int, capacity: int) -> StepAttack:
        """Return the attack arranged for a batch of `rows`, on a device that `capacity` images keep busy."""
        return self

    def current_objective(self, state: State) -> Objective | None:
        """Return what the next step maximises."""
        return self.objective

    def begin(self, state: State, classes: int) -> State:
        """Return the attack's own tensors before the first step."""
        return {}

    def query(self, state: State) -> Tensor:
        """Return the images of the next step."""
        return state["iterate"]

    @abstractmethod
    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        """Return the tensors that the answer changes."""


def most_likely_targets(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return [images, at most count]: the wrong classes, the most likely first."""
    wrong = logits.float().scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices


def random_start(threat: Threat, state: State) -> Tensor:
    """Return a random point on the surface of the ball, clipped to the box."""
    clean, threat = state["clean"], threat.with_eps(state["eps"])
    noise = uniform(state["key"], clean[0].numel()).view_as(clean)
    return threat.project(clean + threat.surface_delta(noise), clean)


def keep_worst(state: State, images: Tensor, logits: Tensor, inside: Tensor | None = None) -> State:
    """Return `worst` and `margin`, with the iterates whose margin is wider and that are `inside` the ball.

    A job continues until the host checks it; iterates after its end do not count. NaN, in the logits or in the image,
    counts as the widest margin, so that it reaches the confirmation, which refuses it.
    """
    margin = (logit_margin(logits, state["label"]) + 0 * images.detach().sum((1, 2, 3))).nan_to_num(nan=torch.inf)
    worse = (margin > state["margin"]) & (state["step"] < state["end"])
    if inside is not None:
        worse &= inside
    worst = choose(worse, images.detach(), state["worst"])
    return {"worst": worst, "margin": torch.where(worse, margin, state["margin"])}


def choose(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return `torch.where` image by image."""
    return torch.where(column(which, yes), yes, no)
