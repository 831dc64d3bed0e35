"""The cost of running a model: parameters, floating-point operations, images per second."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adaptive_smoothing.models.contract import trusted_images

# Images of CIFAR's size in a timed batch, by type of device; number of batches that are timed.
BATCH = {"cuda": 512, "cpu": 16}
ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """Parameters, FLOPs for one image (a multiplication with an addition counts as two), and speed."""

    parameters: int
    flops: int
    images_per_second: float

    def summary(self) -> dict[str, int | float]:
        return {**asdict(self), "images_per_second": round(self.images_per_second, 1)}


def measure_cost(model: nn.Module, shape: tuple[int, ...], device: torch.device | str) -> Cost:
    """Count the operations on one image and time batches in the model's own precision; the fastest one counts."""
    device = torch.device(device)
    count = max(1, BATCH.get(device.type, 64) * 3 * 32 * 32 // math.prod(shape))
    images = torch.rand(count, *shape, device=device)
    with torch.no_grad(), trusted_images():
        with (counter := FlopCounterMode(display=False)):
            model(images[:1])
        seconds = min(_seconds(model, images) for _ in range(ROUNDS))
    parameters = sum(weight.numel() for weight in model.parameters())
    return Cost(parameters, int(counter.get_total_flops()), count / seconds)


def _seconds(model: nn.Module, images: torch.Tensor) -> float:
    start = time.perf_counter()
    model(images).sum().item()
    return time.perf_counter() - start
