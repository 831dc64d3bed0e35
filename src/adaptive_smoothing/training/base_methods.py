"""Methods to train a base classifier.

A method makes training examples from a batch, and a loss from examples. Weight perturbation evaluates the loss twice on
the same examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.objectives import KLDivergence, kl_divergence
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.recipe import MethodSettings

Network = Callable[[Tensor], Tensor]


class BaseMethod(Protocol):
    """A method to train a base classifier."""

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        """Return the images to train on; the network is frozen and in evaluation mode."""

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of the examples."""

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        """Return the images that pass through the network in training, for batch-norm statistics."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that the method changes from batch to batch, for checkpoints."""


@dataclass(kw_only=True)
class Standard:
    """Cross-entropy on clean images; `logit_margin` is subtracted from the logit of the label."""

    label_smoothing: float = 0.0
    logit_margin: float = 0.0

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        return batch.images

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        logits = network(examples).float()
        return self.risk(logits, batch.labels), logits

    def risk(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.logit_margin:
            logits = logits - self.logit_margin * F.one_hot(labels, logits.shape[1])
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return examples

    def state(self) -> dict[str, Tensor]:
        return {}


@dataclass(kw_only=True)
class Gaussian(Standard):
    """Cross-entropy on images with the noise of randomized smoothing (Cohen et al. 2019).

    Several noisy copies of an image add `consistency` times the mean KL divergence of their probabilities from the
    average, and `SHARPNESS` times the entropy of the average (Jeong and Shin 2020). Agreement between copies makes the
    smoothed classifier more confident.
    """

    SHARPNESS: ClassVar[float] = 0.5

    sigma: float = 0.25
    copies: int = 1
    consistency: float = 0.0

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        images = torch.cat([batch.images] * self.copies)
        noise = torch.randn(images.shape, generator=batch.noise, device=images.device, dtype=images.dtype)
        return images + self.sigma * noise

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        logits = network(examples).float()
        risk, copies = self.risk(logits, batch.labels.repeat(self.copies)), logits.unflatten(0, (self.copies, -1))
        if self.consistency:
            average = copies.log_softmax(-1).logsumexp(0) - math.log(self.copies)
            divergence = torch.stack([kl_divergence(average, copy) for copy in copies]).mean()
            risk = risk + self.consistency * divergence - self.SHARPNESS * (average.exp() * average).sum(1).mean()
        return risk, copies[0]


@dataclass(kw_only=True)
class AdversarialTraining(Standard):
    """Cross-entropy on attacked images (Madry et al. 2018)."""

    attack: PGD

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        return self.attack.last_iterate(frozen, batch.images, batch.labels, batch.noise)


@dataclass(kw_only=True)
class Trades(AdversarialTraining):
    """Cross-entropy on clean images plus beta times the KL divergence to the attacked ones (Zhang et al. 2019)."""

    beta: float = 6.0

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        with torch.no_grad():
            clean = frozen(batch.images).clone()
        attack = replace(self.attack, objective=KLDivergence(clean))
        return attack.last_iterate(frozen, batch.images, batch.labels, batch.noise)

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        clean, attacked = network(self.inputs(batch, examples)).float().chunk(2)
        natural = self.risk(clean, batch.labels)
        return natural + self.beta * kl_divergence(clean, attacked).mean(), attacked

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return torch.cat([batch.images, examples])


@dataclass(kw_only=True)
class InstanceAdaptive(AdversarialTraining):
    """Adversarial training with one radius per training image (IAAT, Balaji et al. 2019).

    The target of a radius is larger by `step` if the image is robust there, smaller by `step` if it is not robust at
    its radius, and 0 if it is misclassified without an attack. The radius moves towards its target by the share
    `smoothing`. During `warmup` epochs it is eps for every correct image.
    """

    radius: Tensor
    step: float
    smallest_step: float
    smoothing: float
    warmup: int

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        images, labels = batch.images, batch.labels
        with torch.no_grad():
            correct = frozen(images).argmax(1) == labels
        if batch.epoch < self.warmup:
            self.radius[batch.positions] = radius = correct * self.attack.threat.eps
            return self._attack(frozen, batch, radius)
        radius = self.radius[batch.positions]
        larger, own = (self._attack(frozen, batch, radius + more) for more in (self.step, 0.0))
        with torch.no_grad():
            robust_larger, robust_own = (frozen(attacked).argmax(1) == labels for attacked in (larger, own))
        change = robust_larger.float() - (~robust_own & ~robust_larger).float()
        target = correct * (radius + self.step * change).clamp_min(0)
        radius = torch.lerp(radius, target, self.smoothing)
        self.radius[batch.positions] = radius
        # The attack at the larger radius, projected to the new one, is an attack at the new one.
        return self.attack.threat.with_eps(radius).project(larger, images)

    def _attack(self, frozen: Network, batch: TrainingBatch, radius: Tensor) -> Tensor:
        # A step size for eps would not reach the border of a larger radius.
        step = (2 * radius / self.attack.steps).clamp_min(self.smallest_step)
        attack = replace(self.attack, threat=self.attack.threat.with_eps(radius), step_size=step)
        return attack.last_iterate(frozen, batch.images, batch.labels, batch.noise)

    def state(self) -> dict[str, Tensor]:
        return {"radius": self.radius}


def make_base_method(settings: MethodSettings, images: int, device: torch.device) -> BaseMethod:
    """Return the method of a recipe for a training set of so many images."""
    risk = {"label_smoothing": settings.label_smoothing, "logit_margin": settings.logit_margin}
    if settings.name == "standard":
        return Standard(**risk)
    if settings.name == "gaussian":
        return Gaussian(**risk, sigma=settings.sigma, copies=settings.copies, consistency=settings.consistency)
    attack = PGD(settings.threat, steps=settings.steps, step_size=settings.attack_step, random_start=True)
    if settings.name == "at":
        return AdversarialTraining(**risk, attack=attack)
    if settings.name == "trades":
        return Trades(**risk, attack=attack, beta=settings.beta)
    return InstanceAdaptive(
        **risk,
        attack=attack,
        radius=torch.full((images,), settings.eps, device=device),
        step=settings.radius_step,
        smallest_step=settings.attack_step,
        smoothing=settings.radius_smoothing,
        warmup=settings.radius_warmup,
    )
