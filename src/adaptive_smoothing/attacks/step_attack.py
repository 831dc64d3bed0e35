"""An attack as the engine runs it: many jobs side by side, one step of all of them at a time.

A job is one attempt on one image: a target class, a random start. The jobs of a batch live in a `State`, tensors
with one row a job, among them

    clean, label, eps     the image, its class, the radius around it
    target                the class to reach, for attacks that have one
    key                   what its random numbers are drawn from: seed, attack, image and number of the job
    step, end             how many steps it has made, and how many it may make
    worst, margin         the worst iterate so far inside the ball, and its margin (positive: misclassified); before the
                          first step the worst version that earlier attacks have found
    bar                   the margin above which it may have succeeded: zero, or that of a success that was refused

and whatever the attack keeps for itself. A step asks the model about one image (`query`) and learns from the answer
(`update`). Rows know nothing of each other and of when they began, so a job ends the same in any batch. Neither
function looks at a value or makes a choice on the host, so both can be compiled and recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.engine.arithmetic import AS_IT_IS, Arithmetic
from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.objectives import Objective
from adaptive_smoothing.noise import uniform
from adaptive_smoothing.threat import Threat

State = dict[str, Tensor]

# The host looks at a batch this often, in steps: a look stops the device, and a job that is done waits for it.
LOOKS = range(5, 9)


class Answer(NamedTuple):
    """What the model says of the images of a step: logits, and where they were asked for the loss and its gradient."""

    logits: Tensor
    loss: Tensor | None = None
    gradient: Tensor | None = None


class StepAttack(ABC):
    """What the engine needs of an attack."""

    threat: Threat
    seed: int
    # Whether jobs go on to their end, also on images that have fallen, for the widest margin that any can find.
    to_the_end: bool = False

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """How many steps a job takes."""

    @property
    def look_every(self) -> int:
        """Steps between two looks of the host, so that the last one falls on the end of a job, or soon after."""
        return min(LOOKS, key=lambda steps: -self.evaluations % steps)

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[images, jobs]: the target of each job, or the label where there is none; in the order they are tried."""
        return labels[:, None]

    def for_rows(self, rows: int, full: int) -> StepAttack:
        """The same attack, arranged for a batch of so many rows on a device that is busy with `full` images."""
        return self

    def objective(self, state: State) -> Objective | None:
        """What to climb; None for an attack that asks for no gradient."""
        return None

    def begin(self, state: State, classes: int) -> State:
        """What the attack keeps for itself, before the first step."""
        return {}

    @abstractmethod
    def query(self, state: State) -> Tensor:
        """The image each row asks about next."""

    @abstractmethod
    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        """The tensors that change with the answer."""


@dataclass(frozen=True)
class Victim:
    """The model under attack, and where gradients come from: the model itself, or one whose attack is transferred."""

    model: Callable[[Tensor], Tensor]
    source: Any = None
    arithmetic: Arithmetic = AS_IT_IS

    def answer(self, objective: Objective | None, images: Tensor, state: State) -> Answer:
        """One pass of each network."""
        with self.arithmetic.of_float32():
            if objective is None:
                return Answer(self.predict(images))
            with torch.enable_grad():
                images = images.detach().requires_grad_()
                source = self.model if self.source is None else self.source
                loss, logits = objective(source, images, state["label"], state["target"])
                gradient = _gradient(loss, images)
            logits = logits.detach() if self.source is None else self.predict(images)
            return Answer(logits, loss.detach(), gradient)

    def predict(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(images.detach())


def _gradient(loss: Tensor, images: Tensor) -> Tensor:
    """Zero where the model cuts the images off from its output: for the alarms to say, and for Square to attack."""
    gradient = torch.autograd.grad(loss.sum(), images, allow_unused=True)[0] if loss.requires_grad else None
    return torch.zeros_like(images) if gradient is None else gradient


def most_likely_targets(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """[images, at most count]: the wrong classes, the most likely first."""
    wrong = logits.float().scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices


def targets_with_restarts(logits: Tensor, labels: Tensor, classes: int, restarts: int) -> Tensor:
    """All targets once, then all of them again; one job without a target where there are to be none."""
    once = most_likely_targets(logits, labels, classes) if classes else labels[:, None]
    return once.repeat(1, restarts)


def random_start(threat: Threat, state: State) -> Tensor:
    """A random point on the surface of the ball, inside the box."""
    clean, threat = state["clean"], threat.with_eps(state["eps"])
    noise = uniform(state["key"], clean[0].numel()).view_as(clean)
    return threat.project(clean + threat.on_the_surface(noise), clean)


def keep_worst(state: State, images: Tensor, logits: Tensor, inside: Tensor | None = None) -> State:
    """The iterates that are worse than those kept so far, where they are `inside` the ball.

    A job goes on until the host looks; what it finds after its end does not count. Not a number, in the logits or in
    the image, is the worst of all: it must reach the verdict, which refuses it.
    """
    margin = logit_margin(logits, state["label"]) + 0 * images.detach().sum((1, 2, 3))
    margin = margin.nan_to_num(nan=torch.inf)
    worse = (margin > state["margin"]) & (state["step"] < state["end"])
    worse = worse if inside is None else inside & worse
    return {
        "worst": choose(worse, images.detach(), state["worst"]),
        "margin": torch.where(worse, margin, state["margin"]),
    }


def choose(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`torch.where` image by image."""
    return torch.where(column(which, yes), yes, no)


def column(values: Tensor, images: Tensor) -> Tensor:
    """One number per image, shaped to broadcast against images."""
    return values.view(-1, *[1] * (images.dim() - 1))
