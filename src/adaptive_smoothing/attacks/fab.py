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
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, keep_worst
from adaptive_smoothing.threat import Threat, column

# The reference's numbers: the largest weight of the clean image, the overshoot beyond the plane, and the share of the
# perturbation that is kept after a misclassified iterate.
MAX_CLEAN_WEIGHT, OVERSHOOT, BACKWARD = 0.1, 1.05, 0.9
# The shortest step to a plane is found by Newton's method on a concave, piecewise linear function of the time. Six
# steps are exact in Linf. In L2 they are exact for planes up to 90 % of the way to a corner of the box, and end short
# of planes that are farther away.
NEWTON_STEPS = 6
# An infinite time would give NaN for a pace of zero. Rounding would give a negative one near a corner of the box.
LARGEST_TIME = 1e30
# The dimensions of an image.
IMAGE = (-3, -2, -1)


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
        # One step begins here, the other at the clean image.
        here = torch.lerp(clean, images, column(torch.where(fooled, BACKWARD, 1.0).to(images), images))
        starts = torch.stack([here, clean])
        steps = step_to_plane(threat, starts, gradient, (gradient * images).sum(IMAGE) - lead)
        length = self.threat.distance(steps.flatten(0, 1), steps.new_zeros(())).clamp_min(1e-8).view(2, -1)
        weight = column((length[0] / length.sum(0)).clamp(max=MAX_CLEAN_WEIGHT), images)
        beyond, beyond_from_clean = torch.add(starts, steps, alpha=OVERSHOOT)
        ahead = torch.lerp(beyond, beyond_from_clean, weight)
        # NaN counts as inside, so that it reaches the confirmation, which raises an error.
        inside = ~(threat.distance(images, clean) > state["eps"])
        return keep_worst(state, images, logits, inside) | {"iterate": ahead.clamp(0, 1)}


def step_to_plane(threat: Threat, points: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """Return the shortest step, in the threat's norm, from points in the box to the plane normal . z = offset.

    The step stays in the box: every pixel moves at its own pace until it reaches a face of the box. If the plane does
    not meet the box, the step ends in the corner nearest to the plane. `points` may have more dimensions in front.
    """
    # Only the direction matters, and the squares of tiny gradients would underflow.
    largest = normal.abs().amax(IMAGE).clamp_min(torch.finfo(normal.dtype).tiny)
    normal, offset = normal / column(largest, normal), offset / largest
    excess = (normal * points).sum(IMAGE) - offset
    # sign(NaN) is 0, which would stop the attack and look like robustness.
    downhill = normal.sign() * column(-excess.sign().where(~excess.isnan(), excess), points)
    room = torch.where(downhill > 0, 1 - points, points)
    pace, slope, goal = threat.pace(normal), normal.abs(), excess.abs()
    # How much each pixel gains in a unit of time, the most that it can gain, and when it reaches a face.
    rate, most, end = slope * pace, slope * room, room / pace
    time = torch.zeros_like(goal)
    for _ in range(NEWTON_STEPS):
        moving = end > column(time, points)
        gained, speed = torch.where(moving, 0.0, most).sum(IMAGE), (rate * moving).sum(IMAGE)
        time = torch.where(speed > 0, (goal - gained) / speed, time).clamp(0, LARGEST_TIME)
    return downhill * torch.minimum(column(time, points) * pace, room)
