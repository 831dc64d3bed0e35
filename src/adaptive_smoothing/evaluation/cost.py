"""The cost of running a model: parameters, floating-point operations, images per second."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.memory import with_smaller_batches

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
    with torch.no_grad(), trusted_images():
        with (counter := FlopCounterMode(display=False)):
            model(torch.rand(1, *shape, device=device))
        speed = with_smaller_batches(
            lambda size: _images_per_second(model, torch.rand(size, *shape, device=device)), count
        )
    parameters = sum(weight.numel() for weight in model.parameters())
    return Cost(parameters, int(counter.get_total_flops()), speed)


def _images_per_second(model: nn.Module, images: Tensor) -> float:
    return len(images) / min(_seconds(model, images) for _ in range(ROUNDS))


def _seconds(model: nn.Module, images: Tensor) -> float:
    start = time.perf_counter()
    model(images).sum().item()
    return time.perf_counter() - start
