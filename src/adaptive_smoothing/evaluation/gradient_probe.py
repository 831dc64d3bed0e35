"""Measurements on a model and a few images, on which the alarms are based."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.recorder import RecordedObjective
from adaptive_smoothing.attacks.objectives import logit_margin, margin, targeted_margin_loss
from adaptive_smoothing.attacks.pgd import PGD, MaskedGradientWarning
from adaptive_smoothing.attacks.step_attack import most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.inference import float32_as, fp32_logits
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat, per_image

# Size of a step: far below a level of 1/255, far above the rounding of float32.
TINY_STEP = 1e-4
# Relative error of a gradient from which on it is incorrect. Plain networks have 1 to 5 % in the median and at most
# 20 %; a step function has 100 %.
INCORRECT_GRADIENT = 0.5


@dataclass(frozen=True)
class GradientProbe:
    """A model, images with their labels, and the threat."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    threat: Threat
    seed: int = 0

    @cached_property
    def logits(self) -> Tensor:
        return fp32_logits(self.model, self.images)

    def take(self, which: Tensor) -> GradientProbe:
        """Return the probe of a selection of the images.

        Its logits are computed again, because they may differ in the last bit in a batch of another size.
        """
        return replace(self, images=self.images[which], labels=self.labels[which], threat=self.threat.take(which))

    def rounding(self) -> float:
        """Return a change of the logits that may be due to rounding."""
        return 64 * torch.finfo(torch.float32).eps * self.logits.abs().max().item()

    def gradient(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        """Return the gradient of a loss, or None if the logits are not connected to the images."""
        return gradient_of(lambda images: loss(self.model(images), self.labels), self.images)

    def flat(self) -> Tensor:
        """Return which images have the same logits after a tiny step, up or down, but not after a step of size eps."""
        normal = self._normal("flat", self.images.shape)
        # Images lie on levels of 1/255. A model that rounds down to levels changes after any step down, not up.
        up = TINY_STEP * normal.abs().clamp_max(1)
        same = [(self._logits(self.images + step) == self.logits).all(1) for step in (up, -up)]
        return (same[0] | same[1]) & (self._logits(self._step_of_eps(normal)) != self.logits).any(1)

    def incorrect_gradient(self) -> list[Tensor]:
        """Return which images have a gradient far from finite differences.

        The result has two parts: along the gradient itself, and in random directions. It is empty without a gradient.
        """
        centre = self.images.clamp(TINY_STEP, 1 - TINY_STEP)
        # The runner-up is fixed, because the margin has kinks where another class becomes the runner-up.
        runners_up = most_likely_targets(self.logits, self.labels, 1).squeeze(1)
        gradient = gradient_of(lambda images: targeted_margin_loss(self.model(images), self.labels, runners_up), centre)
        if gradient is None:
            return []
        directions = [gradient.sign()], self._random_signs()
        return [self._disagrees(centre, runners_up, gradient, signs) for signs in directions]

    def alpha_change(self) -> float:
        """Return the largest change of alpha when an image moves by eps or is replaced by another one."""
        assert isinstance(self.model, MixedClassifier)
        places = self.images, self._step_of_eps(self._normal("alpha", self.images.shape)), self.images.roll(1, 0)
        with torch.no_grad():
            alpha, moved, replaced = (self.model.mix(images).alpha for images in places)
        return torch.maximum((moved - alpha).abs(), (replaced - alpha).abs()).max().item()

    def gain(self, which: Tensor, steps: int) -> float:
        """Return the increase of the median margin by an attack with so many steps on some of the images."""
        before = logit_margin(self.logits, self.labels)[which]
        with float32_as("tf32"):  # the directions need not be exact, and a GPU finds them sooner
            attack = PGD(self.threat.take(which), steps, objective=self._recorded_margin(len(which)))
            return (self.margins_after(attack, which) - before).median().item()

    def margins_after(self, attack: PGD, which: Tensor) -> Tensor:
        """Return the margins of some images after an attack, without a warning if gradients are zero."""
        labels = self.labels[which]
        with warnings.catch_warnings(action="ignore", category=MaskedGradientWarning):
            adversarial = attack(self.model, self.images[which], labels)
        return logit_margin(self._logits(adversarial), labels)

    def _recorded_margin(self, count: int) -> RecordedObjective:
        """Return the margin of so many images. It is recorded once, for all numbers of steps."""
        if count not in self._recorded:
            self._recorded[count] = RecordedObjective(margin, self.model, self.images[:count], self.labels[:count])
        return self._recorded[count]

    @cached_property
    def _recorded(self) -> dict[int, RecordedObjective]:
        return {}

    def _logits(self, images: Tensor) -> Tensor:
        return fp32_logits(self.model, images.clamp(0, 1))

    def _step_of_eps(self, direction: Tensor) -> Tensor:
        return (self.images + self.threat.steepest(direction) * per_image(self.threat.eps, direction)).clamp(0, 1)

    def _normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, generator=generator(self.seed, "alarms", name)).to(self.images)

    def _random_signs(self) -> list[Tensor]:
        """Return fine and coarse random directions: a detached part of the model may respond to one kind only."""
        count, channels, *size = self.images.shape
        coarse = [self._normal(f"coarse {k}", (count, channels, *(-(-side // 4) for side in size))) for k in range(2)]
        fine = [self._normal(f"fine {k}", self.images.shape) for k in range(2)]
        return [direction.sign() for direction in (*fine, *(F.interpolate(noise, size=size) for noise in coarse))]

    def _disagrees(self, centre: Tensor, runners_up: Tensor, gradient: Tensor, signs: list[Tensor]) -> Tensor:
        """Return for which images a gradient disagrees with finite differences in these directions.

        All directions are compared together, because a directional derivative may be near zero by chance.
        """

        def loss(images: Tensor) -> Tensor:
            return targeted_margin_loss(self._logits(images), self.labels, runners_up)

        real = torch.stack([loss(centre + TINY_STEP * sign) - loss(centre - TINY_STEP * sign) for sign in signs])
        predicted = torch.stack([2 * TINY_STEP * (gradient * sign).flatten(1).sum(1) for sign in signs])
        error, size = (real - predicted).norm(dim=0), torch.maximum(real.norm(dim=0), predicted.norm(dim=0))
        return (error > INCORRECT_GRADIENT * size) & (error > self.rounding())


def gradient_of(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor | None:
    """Return the gradient of the sum of a function's values, or None if they are not connected to the images."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        values = function(images)
        return torch.autograd.grad(values.sum(), images, allow_unused=True)[0] if values.requires_grad else None


def share(which: Tensor) -> float:
    """Return the share of True."""
    return which.float().mean().item()


def share_zero(gradient: Tensor | None) -> float:
    """Return the share of images whose gradient is exactly zero."""
    return 1.0 if gradient is None else share((gradient == 0).flatten(1).all(1))
