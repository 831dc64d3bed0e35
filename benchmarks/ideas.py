"""Training methods for h that are tried and not in the library. `variants.py` uses them by name: `idea=peer`.

Options follow as `idea.NAME=VALUE`. Each idea trains on one stream: the recipe has the method `trades` and no second
policy. Sources are in docs/log.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import KLDivergence, kl_divergence
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models import architectures, zoo
from adaptive_smoothing.training import train_base
from adaptive_smoothing.training.base_methods import Network, Trades
from adaptive_smoothing.training.loop import Loop, TrainingBatch
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import MethodSettings, Recipe
from adaptive_smoothing.training.streams import StreamFunctions, TwoStreams


def softened(logits: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(logits / T) || softmax(other / T)) * T^2 of each image."""
    return kl_divergence(logits / temperature, other / temperature) * temperature**2


class Idea(Trades):
    """TRADES. `separate=1` passes clean and attacked images through the network one after the other."""

    separate = 0.0

    def __init__(self, settings: MethodSettings, images: int, device: torch.device, **options: float) -> None:
        super().__init__(settings, images, device)
        for name, value in options.items():
            if not hasattr(type(self), name):
                raise ValueError(f"expected an option of {type(self).__name__}, got {name!r}")
            setattr(self, name, value)

    def prepare(self, trainer: train_base.Trainer) -> None:
        """Make what the idea needs next to the network."""

    @staticmethod
    def container(model: nn.Module, recipe: Recipe, classes: int) -> nn.Module:
        """Return what is trained: the model, or the model with another one."""
        return model

    def both(self, network: Network, clean: Tensor, attacked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of clean and attacked images in training mode."""
        if self.separate:
            return network(clean).float(), network(attacked).float()
        first, second = network(torch.cat([clean, attacked])).float().chunk(2)
        return first, second

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        clean, attacked = self.both(network, batch.images, examples)
        return self.terms(clean, attacked, batch), attacked

    def terms(self, clean: Tensor, attacked: Tensor, batch: TrainingBatch) -> Tensor:
        return self.risk(clean, batch.labels) + self.settings.beta * kl_divergence(clean, attacked).mean()


class PartialPerturbation(Idea):
    """Weight perturbation from the first `share` of each batch."""

    share = 0.25

    def perturbation_loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> Tensor:
        count = round(len(examples) * self.share)
        part = batch._replace(images=batch.images[:count], labels=batch.labels[:count])
        return self.loss(network, part, examples[:count])[0]


class Half(Idea):
    """The mean of the cross-entropies of clean and attacked images; `clean` is the weight of the former."""

    clean = 0.5

    def terms(self, clean: Tensor, attacked: Tensor, batch: TrainingBatch) -> Tensor:
        return self.clean * self.risk(clean, batch.labels) + (1 - self.clean) * self.risk(attacked, batch.labels)


class ImprovedKL(Idea):
    """The improved KL divergence (Cui et al. 2024): `soft` * cross-entropy + `square` * squared differences."""

    soft, square, temperature = 4.0, 20.0, 4.0

    def prepare(self, trainer: train_base.Trainer) -> None:
        classes = trainer.train_data.num_classes
        self.epoch, self.sums = -1, torch.full((classes, classes), 1 / classes, device=trainer.device)
        self.weights = self.sums.clone()

    def terms(self, clean: Tensor, attacked: Tensor, batch: TrainingBatch) -> Tensor:
        with torch.no_grad():
            if batch.epoch != self.epoch:
                if self.epoch >= 0:
                    self.weights = self.sums / self.sums.sum(1, keepdim=True)
                self.epoch, self.sums = batch.epoch, torch.zeros_like(self.sums)
            self.sums.index_add_(0, batch.labels, (clean / self.temperature).softmax(1))
            classes = self.weights[batch.labels]
            weight = classes[:, :, None] * classes[:, None, :]
        change = clean - attacked
        squares = (change[:, :, None] - change[:, None, :]).square() * weight
        soft = -(clean.detach().softmax(1) * attacked.log_softmax(1)).sum(1).mean()
        square = 0.25 * squares.sum((1, 2)).mean()
        return self.risk(clean, batch.labels) + self.soft * soft + self.square * square


class SoftLabels(Idea):
    """TRADES with soft labels: shares of the label, of g, of the old h, and of an average of the trained weights.

    With `robust=1` the attacked images are compared with the soft labels, otherwise with the clean prediction.
    """

    g, h, average, temperature, decay, robust = 0.0, 0.0, 0.0, 1.0, 0.995, 0.0

    def prepare(self, trainer: train_base.Trainer) -> None:
        self.classes, self.teachers = trainer.train_data.num_classes, []
        for share, name in ((self.g, "resnet18-standard"), (self.h, "resnet18-robust")):
            if share:
                teacher = zoo.load(name, device=str(trainer.device)).to(memory_format=trainer.layout)
                self.teachers.append((share, trainer._for_training(teacher)))
        self.mean: nn.Module | None = None
        if self.average:
            self.trained, self.mean = trainer.classifier, copy.deepcopy(trainer.classifier).requires_grad_(False).eval()
            self.teachers.append((self.average, trainer._for_training(self.mean)))

    @torch.no_grad()
    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        if self.mean is not None:
            tensors = [list(chain(m.parameters(), m.buffers())) for m in (self.mean, self.trained)]
            floats = [(old, new) for old, new in zip(*tensors, strict=True) if old.is_floating_point()]
            torch._foreach_lerp_([old for old, _ in floats], [new for _, new in floats], 1 - self.decay)
        target = F.one_hot(batch.labels, self.classes).float() * (1 - sum(share for share, _ in self.teachers))
        for share, teacher in self.teachers:
            target += share * (teacher(batch.images).float() / self.temperature).softmax(1)
        self.target = target
        return super().examples(frozen, batch)

    def terms(self, clean: Tensor, attacked: Tensor, batch: TrainingBatch) -> Tensor:
        target = self.target[: len(clean)]
        risk = F.cross_entropy(clean, target)
        if self.robust:
            return risk + self.settings.beta * F.cross_entropy(attacked, target)
        return risk + self.settings.beta * kl_divergence(clean, attacked).mean()


class Pair(TwoStreams):
    """The network and a peer, which share nothing."""

    def __init__(self, network: nn.Module, peer: nn.Module) -> None:
        nn.Module.__init__(self)
        self.first, self.second = network, peer


class Peer(Idea):
    """The network learns from a peer that learns the labels of the network's adversarial examples (Jung et al. 2024).

    The loss of the network: `peer` * KL from the peer on attacked images, + `self_` * KL from its own prediction on
    clean images, + `clean` and `hard` times the cross-entropy on clean and attacked images.
    """

    temperature, peer, self_, clean, hard, back = 5.0, 0.1, 0.1, 0.0, 0.0, 0.01

    @staticmethod
    def container(model: nn.Module, recipe: Recipe, classes: int) -> nn.Module:
        return Pair(model, architectures.build(recipe.model.arch, **recipe.model.options_for(classes)))

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        assert isinstance(frozen, StreamFunctions)
        with torch.no_grad():
            reference = frozen.second(batch.images).clone()
        attack = replace(self.attack_at(batch.progress), objective=KLDivergence(reference))
        return attack.last_iterate(frozen.first, batch.images, batch.labels, batch.noise)

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(network, StreamFunctions)
        clean, attacked = self.both(network.first, batch.images, examples)
        peer, hot = network.second(examples).float(), self.temperature
        loss = F.cross_entropy(peer, batch.labels) + self.back * kl_divergence(attacked.detach(), peer).mean()
        loss = loss + self.peer * softened(peer.detach(), attacked, hot).mean()
        loss = loss + self.self_ * softened(clean, attacked, hot).mean()
        loss = loss + self.clean * self.risk(clean, batch.labels) + self.hard * self.risk(attacked, batch.labels)
        return loss, attacked


IDEAS: dict[str, type[Idea]] = {
    "trades": Idea,
    "partial": PartialPerturbation,
    "half": Half,
    "ikl": ImprovedKL,
    "soft": SoftLabels,
    "peer": Peer,
}


def trainer(name: str, options: dict[str, float]) -> type[train_base.Trainer]:
    """Return a trainer with an idea in place of the method of the recipe."""

    class IdeaTrainer(train_base.Trainer):
        def __init__(self, recipe: Recipe, train: ImageData, val: ImageData, settings: TrainingOptions) -> None:
            torch.manual_seed(recipe.seed)
            self.classifier = architectures.build(recipe.model.arch, **recipe.model.options_for(train.num_classes))
            trained = IDEAS[name].container(self.classifier, recipe, train.num_classes)
            strength = recipe.method.weight_perturbation
            Loop.__init__(self, recipe, trained, train, val, settings, weight_perturbation=strength)
            self.network = self._network()
            self.method: Any = IDEAS[name](recipe.method, len(train), self.device, **options)
            self.method.prepare(self)

    return IdeaTrainer


@contextmanager
def used(name: str, options: dict[str, float]) -> Iterator[None]:
    """Let `train_base` train with an idea, inside of the context."""
    before, train_base.Trainer = train_base.Trainer, trainer(name, options)  # type: ignore[misc]
    try:
        yield
    finally:
        train_base.Trainer = before  # type: ignore[misc]
