"""Projected gradient descent (Madry et al. 2018), for any norm and any objective.

`PGD` is the attack. `ascend` is its loop, which the local Lipschitz estimate uses as well. `pgd_step` is the step of
every PGD variant in the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import Model, Objective, cross_entropy, logit_margin, loss_and_gradient
from adaptive_smoothing.models.contract import check_eval, check_images, check_labels
from adaptive_smoothing.models.inference import NotFiniteError
from adaptive_smoothing.models.memory import with_smaller_batches
from adaptive_smoothing.noise import generator
from adaptive_smoothing.settings.checks import check_whole, warn_user
from adaptive_smoothing.threat import Threat, check_threat, column, per_image, selected

# With `stop_when_fooled`, the margin at which an attack stops: more than the rounding error of TF32, because a success
# counts only after a check in full precision.
SAFE_MARGIN = 0.01
# The paper's step size in units of eps / steps: 20 steps of 0.0027 at eps = 8/255.
STEP_FACTOR = 0.0027 * 20 / (8 / 255)

# Which images of a batch are still attacked: their positions, or a slice for all of them.
Active = Tensor | slice
# observe(active, iterates, losses, logits) returns which of the active images to go on with, or None for all.
Observer = Callable[[Active, Tensor, Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class PGD:
    """PGD as a function: `PGD(threat, steps=20)(model, images, labels)` returns adversarial images.

    For each image it returns the iterate with the widest margin, which may or may not fool the model. Random starts
    depend on the position of an image in its batch. With `stop_when_fooled`, an image is attacked only until an iterate
    fools the model. This fools the same images in fewer passes, but their margins are not the widest.

    Args:
        threat: the norm and the radius.
        steps: the number of steps.
        step_size: the size of a step, or one per image; by default the paper's, which is 0.0027 for 20 steps at 8/255.
        random_start: start at a random point of the ball.
        objective: what is maximised, a function `(model, images, labels, targets) -> (loss per image, logits)`.
        stop_when_fooled: attack an image only until it is fooled.
        seed: seed of the random starts.

    Examples:
        >>> adversarial = ads.PGD(threat, steps=2)(mixed, images, labels)
        >>> bool((adversarial - images).abs().max() <= 8 / 255 + 1e-6)
        True
        >>> ads.evaluate(mixed, data, ads.PGD(threat, steps=2)).attack
        'PGD at Linf 8/255'
    """

    threat: Threat
    steps: int = 20
    step_size: float | Tensor | None = None  # one, or one per image; None: the paper's, STEP_FACTOR * eps / steps
    random_start: bool = False
    objective: Objective = cross_entropy
    stop_when_fooled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_threat(self.threat)
        check_whole(steps=self.steps)
        if self.steps < 1:
            raise ValueError(f"expected at least 1 step, got {self.steps}: the paper uses 20")

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        check_eval(model)
        check_images(images)
        check_labels(labels, images, getattr(model, "num_classes", None))
        start = self._start(images)

        def in_batches(size: int) -> Tensor:
            parts = [slice(first, first + size) for first in range(0, max(1, len(images)), size)]
            return torch.cat([self.take(rows)._worst(model, images[rows], labels[rows], start[rows]) for rows in parts])

        return with_smaller_batches(in_batches, max(1, len(images)))

    def _worst(self, model: nn.Module, images: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        """Return the iterates with the widest margins. Images do not depend on each other."""
        worst = _WorstIterates(images, labels, self.stop_when_fooled)
        self._ascend(model, images, labels, start, worst.observe)
        worst.check(self.threat)
        return worst.images

    def _ascend(
        self, model: Model, images: Tensor, labels: Tensor, start: Tensor, observe: Observer | None = None
    ) -> Tensor:
        return ascend(self.objective, model, images, labels, self.threat, self.steps, start, self.step_size, observe)

    def last_iterate(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        noise: torch.Generator | None = None,
    ) -> Tensor:
        """Return the last iterates, for adversarial training: nothing is checked, nothing waits for the device."""
        return self._ascend(model, images, labels, self._start(images, noise))

    def take(self, which: Tensor | slice) -> PGD:
        """Return the attack for a selection of the images, with their radii and step sizes."""
        step_size = None if self.step_size is None else selected(self.step_size, which)
        return replace(self, threat=self.threat.take(which), step_size=step_size)

    def _start(self, images: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """Return the first iterates: the images, or random points of their balls."""
        if not self.random_start:
            return images
        noise = noise or generator(self.seed, "pgd start", device=images.device)
        return self.threat.project(images + self.threat.random_delta(images, noise), images)


def ascend(
    objective: Objective,
    model: Model,
    images: Tensor,
    labels: Tensor,
    threat: Threat,
    steps: int,
    start: Tensor,
    step_size: float | Tensor | None = None,
    observe: Observer | None = None,
) -> Tensor:
    """Maximise an objective in the ball around `images` and return the last iterate.

    Args:
        step_size: by default the paper's, STEP_FACTOR * eps / steps.
        observe: is called with every iterate, from `start` to the last one, and can drop images.
    """
    step_size = STEP_FACTOR / steps * threat.eps if step_size is None else step_size
    active: Active = slice(None)
    iterate = start.detach()
    for _ in range(steps):
        loss, logits, gradient = loss_and_gradient(objective, model, iterate, labels[active])
        with torch.no_grad():
            size = selected(step_size, active)
            following = pgd_step(threat.take(active), iterate, gradient, size, images[active])
            keep = None if observe is None else observe(active, iterate, loss, logits)
        if keep is not None:
            active, following = torch.arange(len(images), device=images.device)[active][keep], following[keep]
            if not len(following):
                return following
        iterate = following
    if observe is not None:
        with torch.no_grad():
            observe(active, iterate, *objective(model, iterate, labels[active]))
    return iterate


def pgd_step(threat: Threat, iterate: Tensor, gradient: Tensor, step_size: float | Tensor, clean: Tensor) -> Tensor:
    """Return the next iterate: a step in the steepest direction, projected into the ball around `clean` and the box."""
    return threat.project(iterate + per_image(step_size, iterate) * threat.steepest(gradient), clean)


class MaskedGradientWarning(UserWarning):
    """A model gave an attack no gradient to follow."""


class _WorstIterates:
    """The iterate with the widest margin of each image so far."""

    def __init__(self, images: Tensor, labels: Tensor, stop_when_fooled: bool) -> None:
        self.images, self.labels, self.stop_when_fooled = images.clone(), labels, stop_when_fooled
        self.start: Tensor | None = None
        self.margin = torch.full(labels.shape, -torch.inf, device=images.device)
        self.moved = torch.zeros_like(labels, dtype=torch.bool)

    def observe(self, active: Active, iterate: Tensor, loss: Tensor, logits: Tensor) -> Tensor | None:
        """Keep the iterates with a wider margin; return which images to go on with.

        NaN counts as the widest margin, so that it reaches `check`, which raises an error.
        """
        if self.start is None:
            self.start = iterate
        margin = logit_margin(logits, self.labels[active]).nan_to_num(nan=torch.inf)
        wider = margin > self.margin[active]
        self.images[active] = torch.where(column(wider, iterate), iterate, self.images[active])
        self.margin[active] = torch.where(wider, margin, self.margin[active])
        self.moved[active] |= (iterate != self.start[active]).flatten(1).any(1)
        return margin <= SAFE_MARGIN if self.stop_when_fooled else None

    def check(self, threat: Threat) -> None:
        """Raise an error for NaN, and warn of images that the attack could not move: they may not be robust."""
        may_move = torch.as_tensor(threat.eps, device=self.margin.device) > 0
        stuck = (~self.moved & (self.margin <= 0) & may_move).sum()
        has_nan, count = torch.stack([self.images.isnan().any().long(), stuck]).tolist()
        if has_nan:
            raise NotFiniteError
        if count:
            warn_user(
                f"the gradient was zero for {count} of {len(self.labels)} images, so the attack could not move them; "
                "this does not show that they are robust; try objective=margin (attacks.objectives), or look for a "
                "saturated softmax, a quantised input or a detached part of the model",
                MaskedGradientWarning,
            )
