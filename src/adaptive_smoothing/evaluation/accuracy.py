"""Accuracy, clean and under attack, image by image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.results import interval

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """What a model predicted for every image, before the attack and, if there was one, after it."""

    index: Tensor
    labels: Tensor
    clean_predictions: Tensor
    attacked_predictions: Tensor | None = None

    @property
    def clean_correct(self) -> Tensor:
        return self.clean_predictions == self.labels

    @property
    def robust_correct(self) -> Tensor:
        """Right before and after: an attack that helps the model has not shown robustness."""
        if self.attacked_predictions is None:
            raise ValueError("expected an attack to read robust accuracy from, got none: evaluate(model, data, attack)")
        return self.clean_correct & (self.attacked_predictions == self.labels)

    @property
    def clean(self) -> float:
        return self.clean_correct.double().mean().item()

    @property
    def robust(self) -> float:
        return self.robust_correct.double().mean().item()

    @property
    def clean_interval(self) -> tuple[float, float]:
        return interval(int(self.clean_correct.sum()), len(self.labels))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Clopper-Pearson interval of the robust accuracy."""
        return interval(int(self.robust_correct.sum()), len(self.labels))


def evaluate(
    model: nn.Module,
    data: ImageData,
    attack: Attack | None = None,
    *,
    batch_size: int = 1000,
    device: str | torch.device | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predict every image of `data`, attack those that are right, predict again.

    `progress` is called with the number of images of each finished batch.
    """
    check_data(data)
    check_eval(model)
    device = device_of(model, data, device)
    rows, done = [], 0
    for batch in batches(data, batch_size, device=device):
        logits = fp32_logits(model, batch.images)
        check_labels(batch.labels, batch.images, logits.shape[1])
        clean = logits.argmax(1)
        row = [batch.index, batch.labels, clean]
        if attack is not None:
            row.append(_attacked(model, batch, clean, attack, done))
        rows.append([column.cpu() for column in row])
        done += len(batch.labels)
        if progress is not None:
            progress(len(batch.labels))
    return Evaluation(*(torch.cat(column) for column in zip(*rows, strict=True)))


def _attacked(model: nn.Module, batch: Batch, clean: Tensor, attack: Attack, done: int) -> Tensor:
    """Predictions after the attack, which spares the images that are wrong already."""
    attacked = clean.clone()
    right = (clean == batch.labels).nonzero().squeeze(1)
    if len(right):
        # An attack may hold something for each image of the data, such as a radius.
        attack = attack.take(done + right) if isinstance(attack, PGD) else attack
        adversarial = attack(model, batch.images[right], batch.labels[right])
        attacked[right] = fp32_logits(model, adversarial).argmax(1)
    return attacked
