"""The interface of the attacks that the engine runs.

A job is one attempt to fool the model on one image, with one target class and one random start. The engine runs many
jobs in one batch and makes one step of all of them at a time. The jobs of a batch are in a `State`: tensors with one
row per job.

    clean, label, eps     the image, its class, the radius around it
    target                the class to reach, for targeted attacks
    key                   the key of its random numbers, derived from the seed, the attack, the image and the attempt
    step, end             the number of steps made, and the number of steps to make
    worst, margin         the iterate with the widest margin inside the ball, and this margin (positive: misclassified);
                          before the first step, `worst` is the worst version that earlier attacks have found
    threshold             only a margin above it is sent to confirmation in full precision; at first 0, later the margin
                          of the last success that was not confirmed

An attack adds tensors of its own. In a step, `query` returns the images to ask the model about, and `update` uses the
answer. Rows depend neither on each other nor on when they began, so a job has the same result in any batch. Neither
function reads a value on the host (the CPU that drives the device), so both can be compiled and recorded in a CUDA
graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import Objective, logit_margin
from adaptive_smoothing.attacks.pgd import pgd_step
from adaptive_smoothing.noise import uniform
from adaptive_smoothing.threat import Threat, column

State = dict[str, Tensor]

# Steps between two checks by the host. A check stops the device; without one, finished jobs keep their rows.
CHECK_INTERVALS = range(5, 9)
# Share of the last move in a step with momentum (Croce and Hein 2020).
MOMENTUM = 0.25


class Answer(NamedTuple):
    """The model's logits for the images of a step; for attacks with an objective also its loss and gradient."""

    logits: Tensor
    loss: Tensor | None = None
    gradient: Tensor | None = None


class StepAttack(ABC):
    """An attack that the engine can run. A subclass defines `update`, and either `query` or an `iterate` in `begin`."""

    threat: Threat
    seed: int
    steps: int
    objective: Objective | None = None  # None: the attack uses no gradient
    target_classes: int = 0  # how many of the most likely incorrect classes to try in turn; 0: untargeted
    restarts: int = 1
    lookahead: int = 1  # images per job that one step evaluates
    widest_margin: bool = False  # run every job to its end, also on fooled images, to find the widest margin

    @property
    def evaluations(self) -> int:
        """The number of steps of a job, including the evaluation of its start."""
        return self.steps + 1

    @property
    def check_every(self) -> int:
        """Steps between two checks by the host, chosen so that the last check comes soon after the end of a job."""
        return min(CHECK_INTERVALS, key=lambda steps: -self.evaluations % steps)

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return [images, attempts]: the target of each attempt, in order; the label if the attack is untargeted."""
        once = most_likely_targets(logits, labels, self.target_classes) if self.target_classes else labels[:, None]
        return once.repeat(1, self.restarts)

    def for_rows(self, rows: int, capacity: int) -> StepAttack:
        """Return the attack adapted to a batch of `rows` jobs, on a device that `capacity` images keep busy."""
        return self

    def current_objective(self, state: State) -> Objective | None:
        """Return the objective of the next step."""
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
    """Return [images, at most count]: the incorrect classes, the most likely first."""
    wrong = logits.float().scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices


def random_start(threat: Threat, state: State) -> Tensor:
    """Return a random point on the surface of the ball, clipped to the box."""
    clean, threat = state["clean"], threat.with_eps(state["eps"])
    noise = uniform(state["key"], clean[0].numel()).view_as(clean)
    return threat.project(clean + threat.surface_delta(noise), clean)


def momentum_step(
    threat: Threat, state: State, iterate: Tensor, gradient: Tensor, step_size: Tensor, without_momentum: Tensor
) -> Tensor:
    """Return the next iterate of PGD with momentum; the mask `without_momentum` switches it off job by job."""
    clean, threat = state["clean"], threat.with_eps(state["eps"])
    ahead = pgd_step(threat, iterate, gradient, step_size, clean)
    momentum = column(torch.where(without_momentum, 0.0, MOMENTUM).to(iterate), iterate)
    moved = iterate + (1 - momentum) * (ahead - iterate) + momentum * (iterate - state["previous"])
    return threat.project(moved, clean)


def keep_worst(state: State, images: Tensor, logits: Tensor, inside: Tensor | None = None) -> State:
    """Return `worst` and `margin`, replaced where the new margin is wider and the image is `inside` the ball.

    A job continues until the host checks it; iterates after its end do not count. NaN in the logits or in the image
    counts as the widest margin, so that it reaches the confirmation, which raises an error.
    """
    margin = (logit_margin(logits, state["label"]) + 0 * images.detach().sum((1, 2, 3))).nan_to_num(nan=torch.inf)
    wider = (margin > state["margin"]) & (state["step"] < state["end"])
    if inside is not None:
        wider &= inside
    worst = choose(wider, images.detach(), state["worst"])
    return {"worst": worst, "margin": torch.where(wider, margin, state["margin"])}


def choose(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the image of `yes` where `which` is true, and that of `no` elsewhere."""
    return torch.where(column(which, yes), yes, no)
