"""Projected gradient descent (Madry et al. 2018), for any norm and any objective."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.objectives import Objective, cross_entropy
from adaptive_smoothing.models.contract import check_eval, check_images, check_labels
from adaptive_smoothing.models.inference import NotFiniteError
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat, per_image

# A verdict is read in full precision; an attack that stops here must have fooled the model beyond TF32's rounding.
SURELY = 0.01
# 20 steps of 0.0027 at eps = 8/255, the paper's setting, in units of eps / steps.
STEP_FACTOR = 0.0027 * 20 / (8 / 255)


@dataclass(frozen=True)
class PGD:
    """`PGD(threat, steps=20)(model, images, labels)` -> adversarial images.

    Each image comes back as the iterate that was misclassified by the widest margin, or came closest to it.
    `stop_when_fooled` leaves an image at the first iterate that fools the model and spends the remaining passes
    on the others: the same verdicts for less, but its margins are not the worst ones. Random starts
    are drawn for the batch, not for the image.
    """

    threat: Threat
    steps: int = 20
    step_size: float | Tensor | None = None
    random_start: bool = False
    objective: Objective = cross_entropy
    stop_when_fooled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"expected at least 1 step, got {self.steps}")

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        check_eval(model)
        check_images(images)
        check_labels(labels, images, getattr(model, "num_classes", None))
        worst, iterate = _Worst(images, labels), self.start(images)
        everything = torch.arange(len(images), device=images.device)
        active: Tensor | slice = slice(None)
        for _ in range(self.steps):
            threat = self.threat.take(active)
            following, logits = self._climb(model, iterate, images[active], labels[active], threat)
            standing = worst.update(active, iterate, logits)
            worst.moved[active] |= (following != iterate).flatten(1).any(1)
            if self.stop_when_fooled:
                active, following = everything[active][standing], following[standing]
                if not len(following):
                    break
            iterate = following
        else:
            with torch.no_grad():
                worst.update(active, iterate, model(iterate))
        worst.check(self.threat)
        return worst.images

    def take(self, which: Tensor | slice) -> PGD:
        """The same attack for a selection of the images: the radii of those."""
        return replace(self, threat=self.threat.take(which))

    def start(self, images: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """Where the climb begins: the image itself, or a random point of the ball."""
        if not self.random_start:
            return images
        noise = noise or generator(self.seed, "pgd start", device=images.device)
        return self.threat.project(images + self.threat.random_delta(images, noise), images)

    def last_iterate(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, noise: torch.Generator
    ) -> Tensor:
        """The bare climb that adversarial training uses: no checks, no bookkeeping, nothing that waits for
        the device.
        """
        iterate = self.start(images, noise)
        for _ in range(self.steps):
            iterate, _ = self._climb(model, iterate, images, labels, self.threat)
        return iterate

    def _climb(
        self, model: Callable[[Tensor], Tensor], iterate: Tensor, images: Tensor, labels: Tensor, threat: Threat
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            iterate = iterate.detach().requires_grad_()
            loss, logits = self.objective(model, iterate, labels)
            (gradient,) = torch.autograd.grad(loss.sum(), iterate)
        with torch.no_grad():
            step = self.step_size if self.step_size is not None else STEP_FACTOR / self.steps * threat.eps
            moved = iterate + per_image(step, images) * threat.steepest(gradient)
            return threat.project(moved, images), logits.detach()


class MaskedGradientWarning(UserWarning):
    """A model gave an attack no gradient to follow."""


class _Worst:
    """The worst iterate seen so far of every image."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images.clone()
        self.labels = labels
        self.margin = torch.full(labels.shape, -torch.inf, device=images.device)
        self.moved = torch.zeros_like(labels, dtype=torch.bool)

    def update(self, which: Tensor | slice, iterate: Tensor, logits: Tensor) -> Tensor:
        """Take the iterates that are worse than what is kept; returns which images are not surely fooled yet.

        Not a number is the worst of all: it must reach the verdict, which refuses it.
        """
        margin = logit_margin(logits, self.labels[which]).nan_to_num(nan=torch.inf)
        worse = margin > self.margin[which]
        self.images[which] = torch.where(worse.view(-1, 1, 1, 1), iterate.detach(), self.images[which])
        self.margin[which] = torch.where(worse, margin, self.margin[which])
        return margin <= SURELY

    def check(self, threat: Threat) -> None:
        """An attack that could not move has shown nothing, and one that met NaN has shown a fault."""
        may_move = torch.as_tensor(threat.eps, device=self.margin.device) > 0
        stuck = (~self.moved & (self.margin <= 0) & may_move).sum()
        poisoned, count = torch.stack([self.images.isnan().any().long(), stuck]).tolist()
        if poisoned:
            raise NotFiniteError
        if count:
            warnings.warn(
                f"the gradient was zero for {count} of {len(self.labels)} images: the attack could not move them, "
                "which is no robustness; try objective=margin (attacks.objectives), or look for a saturated softmax, a "
                "quantised input or a detached part of the model",
                MaskedGradientWarning,
                stacklevel=3,
            )
