"""The targeted fast adaptive boundary attack, FAB-T (Croce and Hein 2020): the nearest point where the target wins.

Each step takes the boundary between the two classes for a plane, goes to the plane and a little beyond, drawn back
towards the clean image. After a misclassified iterate the next step starts from a point on the way back. The plane is
that of the iterate itself, whose prediction has to be known anyway: one pass a step, where the reference makes
another one on the way back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.objectives import Objective, targeted_margin
from adaptive_smoothing.attacks.step_attack import (
    Answer,
    State,
    StepAttack,
    choose,
    column,
    keep_worst,
    most_likely_targets,
)
from adaptive_smoothing.threat import Threat

# The weight of the clean image at most, how far beyond the plane, and how far back (the reference's numbers).
TOWARDS_CLEAN, BEYOND, BACK = 0.1, 1.05, 0.9
# The way to a plane is found by Newton's method on a concave, piecewise linear function.
NEWTON_STEPS = 12
FAR = 1e30


@dataclass(frozen=True)
class FAB(StepAttack):
    """Targeted: the most likely wrong classes in turn, each from the clean image itself."""

    threat: Threat
    steps: int = 100
    target_classes: int = 9
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.steps + 1

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        return most_likely_targets(logits, labels, self.target_classes)

    def objective(self, state: State) -> Objective:
        return targeted_margin

    def begin(self, state: State, classes: int) -> State:
        return {"iterate": state["clean"].clone()}

    def query(self, state: State) -> Tensor:
        return state["iterate"]

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        logits, lead, gradient = answer
        assert lead is not None and gradient is not None
        clean, threat = state["clean"], self.threat.with_eps(state["eps"])
        fooled = logit_margin(logits, state["label"]) > 0
        here = choose(fooled, clean + BACK * (images - clean), images)
        offset = (gradient * images).sum((1, 2, 3)) - lead
        to_plane = way_to_plane(threat, here, gradient, offset)
        from_clean = way_to_plane(threat, clean, gradient, offset)
        near, far = (_length(threat, way) for way in (to_plane, from_clean))
        weight = column((near / (near + far)).clamp(max=TOWARDS_CLEAN), images)
        ahead = (here + BEYOND * to_plane) * (1 - weight) + (clean + BEYOND * from_clean) * weight
        # Not a number is not outside: it must reach the verdict, which refuses it.
        inside = ~(threat.distance(images, clean) > state["eps"])
        return keep_worst(state, images, logits, inside) | {"iterate": ahead.clamp(0, 1)}


def way_to_plane(threat: Threat, points: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """The shortest way, in the threat's norm, from points in the box to the plane normal . z = offset inside the box.

    Every pixel moves at its pace until it meets the box; where the plane does not meet the box, all of them do.
    """
    # Only the direction counts, and squares of tiny gradients vanish.
    largest = normal.abs().amax((1, 2, 3)).clamp_min(torch.finfo(normal.dtype).tiny)
    normal, offset = normal / column(largest, normal), offset / largest
    excess = (normal * points).sum((1, 2, 3)) - offset
    # sign(NaN) is 0, which would freeze the attack and pass for robustness.
    downhill = -normal.sign() * column(excess.sign().where(~excess.isnan(), excess), points)
    room = torch.where(downhill > 0, 1 - points, points)
    pace, slope, goal = threat.pace(normal), normal.abs(), excess.abs()
    time = torch.zeros_like(goal)
    for _ in range(NEWTON_STEPS):
        moved = column(time, points) * pace
        free = moved < room
        gained = (slope * torch.minimum(moved, room)).sum((1, 2, 3))
        speed = (slope * pace * free).sum((1, 2, 3))
        # Infinite, it would make NaN of a pace of zero.
        time = torch.where(speed > 0, time + (goal - gained) / speed, time).clamp(max=FAR)
    return downhill * torch.minimum(column(time, points) * pace, room)


def _length(threat: Threat, way: Tensor) -> Tensor:
    return threat.distance(way, torch.zeros_like(way)).clamp_min(1e-8)
