"""Variations of a training method for h that are tried and not in the library. `variants.py` uses them by name.

Example: `idea=ikl idea.square=10` among the keys of a variant. Each idea varies the method `hat`; with the method
`trades` there are no helper images. What an idea remembers is not in checkpoints: a training that is continued forgets
it. Sources are in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.training import train_base
from adaptive_smoothing.training.base_methods import AdversarialTraining, HelperTraining, Network, Trades
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe


class Idea(HelperTraining):
    """The method `hat`, or `trades` without a helper, with the options of an idea.

    Every idea has two options. Weight perturbation uses the first `share` of each batch. With `cross_entropy`, the
    attack maximises the cross-entropy in place of the KL divergence.
    """

    share, cross_entropy = 1.0, 0.0

    def __init__(self, trainer: train_base.Trainer, options: dict[str, float]) -> None:
        method = trainer.method
        Trades.__init__(self, method.settings, 0, trainer.device)
        self.helper = getattr(method, "helper", None)  # type: ignore[assignment]
        for name, value in options.items():
            if not hasattr(type(self), name):
                raise ValueError(f"expected an option of {type(self).__name__}, got {name!r}")
            setattr(self, name, value)
        self.prepare(trainer)

    def prepare(self, trainer: train_base.Trainer) -> None:
        """Make what the idea needs next to the network."""

    def examples(self, frozen: Network, batch: TrainingBatch) -> Tensor:
        method = AdversarialTraining if self.cross_entropy else Trades
        return method.examples(self, frozen, batch)

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        method = HelperTraining if self.helper else Trades
        return method.loss(self, network, batch, examples)

    def perturbation_loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> Tensor:
        count = max(1, round(len(examples) * self.share))
        part = batch._replace(images=batch.images[:count], labels=batch.labels[:count])
        return super().perturbation_loss(network, part, examples[:count])


class ImprovedKL(Idea):
    """The improved KL divergence (Cui et al. 2024): `soft` * cross-entropy + `square` * squared differences."""

    soft, square, temperature = 4.0, 20.0, 4.0

    def prepare(self, trainer: train_base.Trainer) -> None:
        classes = trainer.train_data.num_classes
        self.epoch, self.sums = -1, torch.full((classes, classes), 1 / classes, device=trainer.device)

    def loss(self, network: Network, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        if batch.epoch != self.epoch:
            self.weights = self.sums / self.sums.sum(1, keepdim=True)
            self.epoch, self.sums = batch.epoch, torch.zeros_like(self.sums)
        return super().loss(network, batch, examples)

    def _terms(self, clean: Tensor, attacked: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            self.sums.index_add_(0, labels, (clean / self.temperature).softmax(1))
            classes = self.weights[labels]
            weight = classes[:, :, None] * classes[:, None, :]
        change = clean - attacked
        squares = (change[:, :, None] - change[:, None, :]).square() * weight
        soft = -(clean.detach().softmax(1) * attacked.log_softmax(1)).sum(1).mean()
        square = 0.25 * squares.sum((1, 2)).mean()
        return self.risk(clean, labels) + self.soft * soft + self.square * square


IDEAS: dict[str, type[Idea]] = {"plain": Idea, "ikl": ImprovedKL}


def trainer(name: str, options: dict[str, float]) -> type[train_base.Trainer]:
    """Return a trainer with an idea in place of the method of the recipe."""

    class IdeaTrainer(train_base.Trainer):
        def __init__(self, recipe: Recipe, train: ImageData, val: ImageData, settings: TrainingOptions) -> None:
            super().__init__(recipe, train, val, settings)
            self.method: Any = IDEAS[name](self, options)

    return IdeaTrainer


@contextmanager
def used(name: str, options: dict[str, float]) -> Iterator[None]:
    """Let `train_base` train with an idea, inside of the context."""
    before, train_base.Trainer = train_base.Trainer, trainer(name, options)  # type: ignore[misc]
    try:
        yield
    finally:
        train_base.Trainer = before  # type: ignore[misc]
