"""Methods to train a base classifier: `make_base_method` returns the one that a recipe names.

A method makes training examples from a batch, and a loss from the examples. These are two functions because weight
perturbation evaluates the loss twice on the same examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_smoothing.attacks.objectives import KLDivergence, cross_entropy, kl_divergence, probability_margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.recipe import MethodSettings
from adaptive_smoothing.training.streams import StreamFunctions

# The weight of the entropy of averaged probabilities in the loss of `Gaussian`.
SHARPNESS = 0.5

Network = Callable[[Tensor], Tensor]


def make_base_method(
    settings: MethodSettings, images: int, device: torch.device, helper: Network | None = None
) -> Standard:
    """Return the method of a recipe for a training set with this number of images; `hat` has a helper."""
    if settings.name == "hat":
        if helper is None:
            raise ValueError("expected a helper for the method hat, got none: pass a standard classifier")
        return HelperTraining(settings, images, device, helper)
    methods: dict[str, type[Standard]] = {
        "standard": Standard,
        "at": AdversarialTraining,
        "trades": Trades,
        "iaat": InstanceAdaptive,
        "gaussian": Gaussian,
        "dajat": JointTraining,
    }
    return methods[settings.name](settings, images, device)


class Standard:
    """Cross-entropy on clean images, and the base class of the other methods."""

    def __init__(self, settings: MethodSettings, images: int, device: torch.device) -> None:
        self.settings = settings

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        """Return the images to train on; the network is frozen and in evaluation mode."""
        return batch.images

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of the examples."""
        logits = network(examples).float()
        return self.risk(logits, batch.labels), logits

    def perturbation_loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> Tensor:
        """Return the loss along whose gradient weight perturbation (AWP) moves the weights."""
        return self.loss(network, batch, examples)[0]

    def risk(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy with the label smoothing and the logit margin of the settings."""
        if self.settings.logit_margin:
            logits = logits - self.settings.logit_margin * F.one_hot(labels, logits.shape[1])
        return F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing)

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        """Return the images on which the batch-norm statistics of the trained model are measured."""
        return examples

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that the method changes from batch to batch, for checkpoints."""
        return {}


class Gaussian(Standard):
    """Cross-entropy on images with the noise of randomized smoothing (Cohen et al. 2019).

    With several noisy copies per image, two terms are added (Jeong and Shin 2020): `consistency` times the mean KL
    divergence of their probabilities from the average, and `SHARPNESS` times the entropy of the average. Agreement
    between copies makes the smoothed classifier more confident.
    """

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        images = torch.cat([batch.images] * self.settings.copies)
        noise = torch.randn(images.shape, generator=batch.noise, device=images.device, dtype=images.dtype)
        return images + self.settings.sigma * noise

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        logits, count = network(examples).float(), self.settings.copies
        risk, copies = self.risk(logits, batch.labels.repeat(count)), logits.unflatten(0, (count, -1))
        if self.settings.consistency:
            average = copies.log_softmax(-1).logsumexp(0) - math.log(count)
            divergence = torch.stack([kl_divergence(average, copy) for copy in copies]).mean()
            risk = risk + self.settings.consistency * divergence - SHARPNESS * (average.exp() * average).sum(1).mean()
        return risk, copies[0]


class AdversarialTraining(Standard):
    """Cross-entropy on attacked images (Madry et al. 2018)."""

    def __init__(self, settings: MethodSettings, images: int, device: torch.device) -> None:
        super().__init__(settings, images, device)
        objective = probability_margin if settings.attack_loss == "margin" else cross_entropy
        steps, size = settings.steps, settings.attack_step
        self.attack = PGD(settings.threat, steps=steps, step_size=size, random_start=True, objective=objective)

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        return self.attack_at(batch.progress).last_iterate(frozen, batch.images, batch.labels, batch.noise)

    def attack_at(self, progress: float) -> PGD:
        """Return the attack at this share of the training: radius and step size grow until `radius_growth`."""
        growth = self.settings.radius_growth
        if progress >= growth:
            return self.attack
        threat = self.attack.threat.with_eps(self.settings.eps * progress / growth)
        return replace(self.attack, threat=threat, step_size=self.settings.attack_step * progress / growth)


class Trades(AdversarialTraining):
    """Cross-entropy on clean images plus beta times the KL divergence to the attacked ones (Zhang et al. 2019).

    With a growing radius, few steps and weight perturbation, this is ACAT (Addepalli et al. 2022).
    """

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        return self._attacked(frozen, batch.images, batch)

    def _attacked(self, frozen: Network, images: Tensor, batch: TrainingBatch) -> Tensor:
        """Return attacked images; by default their logits diverge from those of the clean images."""
        attack = self.attack_at(batch.progress)
        if self.settings.attack_loss in ("", "kl"):
            with torch.no_grad():
                clean = frozen(images).clone()
            attack = replace(attack, objective=KLDivergence(clean))
        return attack.last_iterate(frozen, images, batch.labels, batch.noise)

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        clean, attacked = network(self.inputs(batch, examples)).float().chunk(2)
        return self._terms(clean, attacked, batch.labels), attacked

    def _terms(self, clean: Tensor, attacked: Tensor, labels: Tensor) -> Tensor:
        """Return the loss for the logits of clean and attacked images."""
        return self.risk(clean, labels) + self.settings.beta * kl_divergence(clean, attacked).mean()

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return torch.cat([batch.images, examples])


class HelperTraining(Trades):
    """The TRADES loss plus a cross-entropy on helper images (HAT, Rade and Moosavi-Dezfooli 2022).

    A helper image has `helper_length` times the perturbation of the attacked image. Its label is the class that a
    standard classifier, the helper, predicts for the attacked image. TRADES alone makes a model robust farther than
    eps, which costs clean accuracy; helper images reduce this. Weight perturbation, and the batch-norm statistics of
    the trained model, use clean and attacked images only.
    """

    def __init__(self, settings: MethodSettings, images: int, device: torch.device, helper: Network) -> None:
        super().__init__(settings, images, device)
        self.helper = helper

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            labels = self.helper(examples).argmax(1)
        helper_images = torch.lerp(batch.images, examples, self.settings.helper_length)
        clean, attacked, logits = network(torch.cat([batch.images, examples, helper_images])).float().chunk(3)
        loss = self._terms(clean, attacked, batch.labels)
        return loss + self.settings.helper_weight * F.cross_entropy(logits, labels), attacked

    def perturbation_loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return super().loss(network, batch, examples)[0]


class JointTraining(Trades):
    """The mean TRADES loss of two streams plus a divergence between them (DAJAT, Addepalli et al. 2022).

    The second stream has images with strong augmentation, and batch norms of its own. The divergence is the
    Jensen-Shannon divergence of the predictions on clean images, times `consistency`. Weight perturbation uses the
    first stream only. Examples are the attacked images of the first stream followed by those of the second.
    """

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        streams = two_streams(frozen)
        first = self._attacked(streams.first, batch.images, batch)
        return torch.cat([first, self._attacked(streams.second, second_images(batch), batch)])

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        streams, (attacked, second_attacked) = two_streams(network), examples.chunk(2)
        inputs = [torch.cat([batch.images, attacked]), torch.cat([second_images(batch), second_attacked])]
        passes = (streams.first(inputs[0]), streams.second(inputs[1]))
        (clean, logits), (second_clean, second_logits) = (each.float().chunk(2) for each in passes)
        loss = self._terms(clean, logits, batch.labels) + self._terms(second_clean, second_logits, batch.labels)
        divergence = jensen_shannon(torch.stack([clean, second_clean])).mean()
        return loss / 2 + self.settings.consistency * divergence, logits

    def perturbation_loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return Trades.loss(self, network, batch, examples)[0]

    def inputs(self, batch: TrainingBatch, examples: Tensor) -> Tensor:
        return torch.cat([batch.images, examples.chunk(2)[0]])


def two_streams(network: Network) -> StreamFunctions:
    """Return a network that has two streams, or raise an error."""
    if not isinstance(network, StreamFunctions):
        raise TypeError(f"expected a network with two streams, got {type(network).__name__}: pass StreamFunctions")
    return network


def second_images(batch: TrainingBatch) -> Tensor:
    """Return the images of the second stream, or raise an error if the batch has none."""
    if batch.second is None:
        raise ValueError("expected images for the second stream, got none: set data.second_policy in the recipe")
    return batch.second


def jensen_shannon(logits: Tensor) -> Tensor:
    """Return the mean KL divergence of each prediction from their average, for logits [prediction, image, class]."""
    average = logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
    return torch.stack([kl_divergence(each, average) for each in logits]).mean(0)


class InstanceAdaptive(AdversarialTraining):
    """Adversarial training with one radius per training image (IAAT, Balaji et al. 2019).

    The target of a radius is the radius itself, with three exceptions:

    - larger by `radius_step` if the image is robust at that larger radius,
    - smaller by `radius_step` if it is not robust at its own radius,
    - 0 if it is misclassified without an attack.

    The radius moves towards its target by the share `radius_smoothing`. During the first `radius_warmup` epochs it is
    eps for correctly classified images and 0 for the others.
    """

    def __init__(self, settings: MethodSettings, images: int, device: torch.device) -> None:
        super().__init__(settings, images, device)
        self.radius = torch.full((images,), settings.eps, device=device)

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        images, labels, step = batch.images, batch.labels, self.settings.radius_step
        with torch.no_grad():
            correct = frozen(images).argmax(1) == labels
        if batch.epoch < self.settings.radius_warmup:
            self.radius[batch.positions] = radius = correct * self.attack.threat.eps
            return self._attack(frozen, batch, radius)
        radius = self.radius[batch.positions]
        larger, own = (self._attack(frozen, batch, radius + more) for more in (step, 0.0))
        with torch.no_grad():
            robust_larger, robust_own = (frozen(attacked).argmax(1) == labels for attacked in (larger, own))
        change = robust_larger.float() - (~robust_own & ~robust_larger).float()
        target = correct * (radius + step * change).clamp_min(0)
        self.radius[batch.positions] = radius = torch.lerp(radius, target, self.settings.radius_smoothing)
        # The examples of the larger radius, projected to the new radius, need no third attack.
        return self.attack.threat.with_eps(radius).project(larger, images)

    def _attack(self, frozen: Network, batch: TrainingBatch, radius: Tensor) -> Tensor:
        """Return the images, each attacked with its own radius."""
        # A step size for eps would not reach the border of a larger radius.
        step = (2 * radius / self.attack.steps).clamp_min(self.settings.attack_step)
        attack = replace(self.attack, threat=self.attack.threat.with_eps(radius), step_size=step)
        return attack.last_iterate(frozen, batch.images, batch.labels, batch.noise)

    def state(self) -> dict[str, Tensor]:
        return {"radius": self.radius}
