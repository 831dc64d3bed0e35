"""The targeted fast adaptive boundary attack, FAB-T (Croce and Hein 2020): find the nearest point of the target class.

Each step approximates the boundary between the two classes by a plane and moves slightly beyond it, with a bias towards
the clean image. After a misclassified iterate the next step starts from a point closer to the clean image. Here the
plane is the linearisation at the iterate itself, so that a step costs one pass. The reference linearises at the closer
point, which costs a second pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import logit_margin, targeted_margin
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, choose, keep_worst
from adaptive_smoothing.threat import Threat, column

# The reference's numbers: the largest weight of the clean image, the overshoot beyond the plane, and the share of the
# perturbation that is kept after a misclassified iterate.
MAX_CLEAN_WEIGHT, OVERSHOOT, BACKWARD = 0.1, 1.05, 0.9
# The shortest step to a plane is found by Newton's method on a concave, piecewise linear function of the time. Six
# steps are exact in Linf. In L2 they are exact for planes up to 90 % of the way to a corner of the box, and end short
# of planes that are farther away.
NEWTON_STEPS = 6
# An infinite time would give NaN for a pace of zero.
LARGEST_TIME = 1e30


@dataclass(frozen=True)
class FAB(StepAttack):
    """FAB-T with the most likely incorrect classes as targets, always from the clean image."""

    threat: Threat
    steps: int = 100
    target_classes: int = 9
    seed: int = 0
    objective = targeted_margin

    def begin(self, state: State, classes: int) -> State:
        return {"iterate": state["clean"].clone()}

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        logits, lead, gradient = answer
        assert lead is not None and gradient is not None
        clean, threat = state["clean"], self.threat.with_eps(state["eps"])
        fooled = logit_margin(logits, state["label"]) > 0
        here = choose(fooled, clean + BACKWARD * (images - clean), images)
        offset = (gradient * images).sum((1, 2, 3)) - lead
        to_plane = step_to_plane(threat, here, gradient, offset)
        from_clean = step_to_plane(threat, clean, gradient, offset)
        near, far = (threat.distance(step, torch.zeros_like(step)).clamp_min(1e-8) for step in (to_plane, from_clean))
        weight = column((near / (near + far)).clamp(max=MAX_CLEAN_WEIGHT), images)
        ahead = (here + OVERSHOOT * to_plane) * (1 - weight) + (clean + OVERSHOOT * from_clean) * weight
        # NaN counts as inside, so that it reaches the confirmation, which raises an error.
        inside = ~(threat.distance(images, clean) > state["eps"])
        return keep_worst(state, images, logits, inside) | {"iterate": ahead.clamp(0, 1)}


def step_to_plane(threat: Threat, points: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """Return the shortest step, in the threat's norm, from points in the box to the plane normal . z = offset.

    The step stays in the box: every pixel moves at its own pace until it reaches a face of the box. If the plane does
    not meet the box, the step ends in the corner nearest to the plane.
    """
    # Only the direction matters, and the squares of tiny gradients would underflow.
    largest = normal.abs().amax((1, 2, 3)).clamp_min(torch.finfo(normal.dtype).tiny)
    normal, offset = normal / column(largest, normal), offset / largest
    excess = (normal * points).sum((1, 2, 3)) - offset
    # sign(NaN) is 0, which would stop the attack and look like robustness.
    downhill = -normal.sign() * column(excess.sign().where(~excess.isnan(), excess), points)
    room = torch.where(downhill > 0, 1 - points, points)
    pace, slope, goal = threat.pace(normal), normal.abs(), excess.abs()
    # How much each pixel gains in a unit of time, and the most that it can gain before it reaches a face.
    rate, most = slope * pace, slope * room
    time = torch.zeros_like(goal)
    for _ in range(NEWTON_STEPS):
        gain = column(time, points) * rate
        gained, speed = torch.minimum(gain, most).sum((1, 2, 3)), (rate * (gain < most)).sum((1, 2, 3))
        time = torch.where(speed > 0, time + (goal - gained) / speed, time).clamp(max=LARGEST_TIME)
    return downhill * torch.minimum(column(time, points) * pace, room)
