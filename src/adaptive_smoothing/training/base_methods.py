"""The ways to train a base classifier.

A method turns a batch into the examples the network learns from, and examples into a loss. The two are apart so
that an adversary in weight space can look at the loss twice while the attack on the images is run once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.losses import kl_divergence
from adaptive_smoothing.attacks.objectives import KLDivergence
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.recipe import MethodSettings

Network = Callable[[Tensor], Tensor]


class BaseMethod(Protocol):
    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        """What the network is trained on, made with the network frozen and in evaluation mode."""

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to minimise and the logits it was computed from (of the examples)."""

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        """What passes through the network in training: batch-norm statistics are measured on this."""

    def state(self) -> dict[str, Tensor]:
        """What the method remembers from batch to batch; stored in checkpoints."""


@dataclass(kw_only=True)
class Standard:
    """Empirical risk on the images as they are; `logit_margin` is taken from the logit of the right class."""

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
    """Noise of the standard deviation that randomized smoothing will use (Cohen et al. 2019).

    With several noisy copies of an image, `consistency` times the mean KL divergence of their probabilities from the
    average of these, and `SHARPNESS` times the entropy of the average (Jeong and Shin 2020): a smoothed classifier is
    as sure as its base agrees with itself.
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
            apart = torch.stack([kl_divergence(average, copy) for copy in copies]).mean()
            risk = risk + self.consistency * apart - self.SHARPNESS * (average.exp() * average).sum(1).mean()
        return risk, copies[0]


@dataclass(kw_only=True)
class AdversarialTraining(Standard):
    """Train on the attacked images only (Madry et al. 2018)."""

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
    """A radius for every training image (IAAT, Balaji et al. 2019).

    An image whose attack at radius + step still fails gets the larger radius, one that falls at its own radius a
    smaller one, and one that is wrong without an attack none; the change is smoothed over visits. In the first
    epochs the radius is eps for every image that is right.
    """

    radius: Tensor
    step: float
    smallest_step: float
    smoothing: float
    warmup: int

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        images, labels = batch.images, batch.labels
        with torch.no_grad():
            right = frozen(images).argmax(1) == labels
        if batch.epoch < self.warmup:
            self.radius[batch.positions] = radius = right * self.attack.threat.eps
            return self._attack(frozen, batch, radius)
        radius = self.radius[batch.positions]
        further, nearer = (self._attack(frozen, batch, radius + more) for more in (self.step, 0.0))
        with torch.no_grad():
            stands_further = frozen(further).argmax(1) == labels
            stands_nearer = frozen(nearer).argmax(1) == labels
        change = stands_further.float() - (~stands_nearer & ~stands_further).float()
        wanted = right * (radius + self.step * change).clamp_min(0)
        radius = torch.lerp(radius, wanted, self.smoothing)
        self.radius[batch.positions] = radius
        # The furthest attack, drawn back to the new radius, is an attack at that radius.
        return self.attack.threat.with_eps(radius).project(further, images)

    def _attack(self, frozen: Network, batch: TrainingBatch, radius: Tensor) -> Tensor:
        # A step that suits eps would not reach the border of a radius that has grown.
        step = (2 * radius / self.attack.steps).clamp_min(self.smallest_step)
        attack = replace(self.attack, threat=self.attack.threat.with_eps(radius), step_size=step)
        return attack.last_iterate(frozen, batch.images, batch.labels, batch.noise)

    def state(self) -> dict[str, Tensor]:
        return {"radius": self.radius}


def make_base_method(settings: MethodSettings, images: int, device: torch.device) -> BaseMethod:
    """The method a recipe names, for a training set of so many images."""
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
