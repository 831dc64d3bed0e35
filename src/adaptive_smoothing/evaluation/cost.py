"""What a model costs to run: parameters, floating-point operations, images a second."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adaptive_smoothing.models.contract import trusted_images

# Images in a timed batch, and batches timed.
BATCH = {"cuda": 512, "cpu": 16}
ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """FLOPs are those of one image: two for each multiplication with an addition."""

    parameters: int
    flops: int
    images_per_second: float

    def summary(self) -> dict[str, Any]:
        return {**self.__dict__, "images_per_second": round(self.images_per_second, 1)}


def measure_cost(model: nn.Module, shape: tuple[int, ...], device: torch.device | str) -> Cost:
    """Counted on one image, timed on batches in the model's own precision; the fastest round counts."""
    device = torch.device(device)
    # As many values as so many images of CIFAR's have.
    count = max(1, BATCH.get(device.type, 64) * 3 * 32 * 32 // math.prod(shape))
    images = torch.rand(count, *shape, device=device)
    with torch.no_grad(), trusted_images():
        counter = FlopCounterMode(display=False)
        with counter:
            model(images[:1])
        best = min(_seconds(model, images) for _ in range(ROUNDS))
    parameters = sum(weight.numel() for weight in model.parameters())
    return Cost(parameters, int(counter.get_total_flops()), len(images) / best)


def _seconds(model: nn.Module, images: torch.Tensor) -> float:
    start = time.perf_counter()
    model(images).sum().item()
    return time.perf_counter() - start
