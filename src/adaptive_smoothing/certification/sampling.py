"""Samples of a classifier under Gaussian noise: drawn in batches of many images, counted per image.

Sample k of an image does not depend on the batch, on the number of samples, or on interruptions. The noise is drawn on
the device, because drawing it on the host would take longer than the forward passes. So a GPU and a CPU draw different
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.certification import rounding
from adaptive_smoothing.certification.bounds import PROBABILITIES, VOTES
from adaptive_smoothing.certification.radius import check_sigma
from adaptive_smoothing.models.contract import check_logit_form, check_two_classes, trusted_images
from adaptive_smoothing.models.inference import compiled_for_any_size, float32_as
from adaptive_smoothing.models.memory import with_smaller_batches
from adaptive_smoothing.noise import generator, to_device

# Samples of an image whose noise is drawn in one call.
BLOCK = 128
# Samples per forward pass.
BATCH = {"cuda": 4096, "cpu": 128}
# Sums of probabilities are stored as integer multiples of this, so that they do not depend on the order of summation.
UNIT = 2.0**-32
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True)
class Sampler:
    """Source of outputs of `base` under noise N(0, sigma^2): probabilities or, with `hard`, votes.

    `SmoothingOptions` explains the other arguments.
    """

    base: nn.Module
    sigma: float
    hard: bool = False
    seed: int = 0
    precision: str = "float32"
    compiled: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    @cached_property
    def _network(self) -> Callable[[Tensor], Tensor]:
        return compiled_for_any_size(self.base) if self.compiled else self.base

    @property
    def values(self) -> np.ndarray:
        """The values that an observed error is rounded up to."""
        return VOTES if self.hard else PROBABILITIES

    def draw(
        self, images: Tensor, index: Tensor, stream: str, first: int, last: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples `first` to `last` of every image in batches: the row of each image, and outputs [samples, C].

        Args:
            index: number of each image in the data set, which keys its noise.
            stream: name of the noise; different streams are independent.
        """
        size, numbers = self.batch_size or BATCH.get(images.device.type, 1024), index.tolist()
        for jobs in _in_batches(len(images), first, last, size):
            counts = torch.tensor([stop - start for _, start, stop in jobs])
            rows = to_device(torch.tensor([row for row, _, _ in jobs]).repeat_interleave(counts), images.device)
            noise = torch.cat([self._noise(images, numbers[row], stream, *span) for row, *span in jobs])
            yield rows, self.outputs(images[rows] + self.sigma * noise)

    def _noise(self, images: Tensor, index: int, stream: str, start: int, stop: int) -> Tensor:
        """Return the noise of the samples `start` to `stop` of an image, which are in one block."""
        block, offset = divmod(start, BLOCK)
        source = generator(self.seed, "certify", stream, index, block, device=images.device)
        drawn = torch.randn(BLOCK, *images.shape[1:], generator=source, device=images.device)
        return drawn[offset : offset + stop - start]

    @torch.no_grad()
    def outputs(self, noisy: Tensor) -> Tensor:
        """Return probabilities or votes [samples, C] of a batch of noisy images."""
        if noisy.is_cuda:
            noisy = noisy.contiguous(memory_format=torch.channels_last)
        bfloat16 = torch.autocast(noisy.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        with float32_as("ieee" if self.precision == "float32" else "tf32"), bfloat16, trusted_images():
            parts = with_smaller_batches(lambda size: list(map(self._network, noisy.split(size))), len(noisy))
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        check_logit_form(logits, noisy)
        check_two_classes(logits)
        probabilities = logits.float().softmax(1)
        if not self.hard:
            return probabilities
        # argmax would turn NaN into a vote.
        votes = torch.zeros_like(probabilities).scatter(1, logits.argmax(1, keepdim=True), 1.0)
        return votes.masked_fill(logits.isnan().any(1, keepdim=True), torch.nan)


def _in_batches(images: int, first: int, last: int, size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield batches of at most `size` samples, as lists of (image, start, stop), each within one block of noise."""
    batch: list[tuple[int, int, int]] = []
    room = size
    for row in range(images):
        start = first
        while start < last:
            stop = min(last, start + room, start - start % BLOCK + BLOCK)
            batch.append((row, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


class Tally:
    """Counts per image: sums of probabilities, and how often each value of an error was observed.

    Args:
        classes: classes whose errors are counted, [N, K]. The error of the first class is the probability of all other
            classes; the error of any further class is its own probability.
        values: values that errors are rounded up to, in increasing order.
    """

    def __init__(self, classes: Tensor, num_classes: int, values: np.ndarray) -> None:
        self.classes = classes
        self.values = torch.as_tensor(values, dtype=torch.float32, device=classes.device)
        self.sums = torch.zeros(len(classes), num_classes, dtype=torch.int64, device=classes.device)
        self.histograms = torch.zeros(*classes.shape, len(values), dtype=torch.int64, device=classes.device)
        self.has_nan = torch.zeros((), dtype=torch.bool, device=classes.device)

    def add(self, rows: Tensor, probabilities: Tensor) -> None:
        """Add samples [samples, C] of the images in these rows."""
        self.has_nan |= probabilities.isnan().any()
        self.sums.index_add_(0, rows, (probabilities.double() / UNIT).round().long())
        classes = self.classes[rows]
        errors = probabilities.gather(1, classes)
        # The sum of the other probabilities: 1 - p would lose an error of 1e-9.
        errors[:, 0] = probabilities.scatter(1, classes[:, :1], 0.0).sum(1)
        # NaN has no bin, and a bad index aborts the process on a GPU. `counts` raises the error.
        enlarged = (errors * (1 + rounding.PROBABILITY_SUM)).nan_to_num(nan=1.0).clamp(0, 1)
        bins = torch.bucketize(enlarged, self.values)
        _, counted, values = self.histograms.shape
        places = ((rows[:, None] * counted + torch.arange(counted, device=rows.device)) * values + bins).flatten()
        self.histograms.view(-1).index_add_(0, places, torch.ones_like(places))

    def counts(self, which: int = 0) -> np.ndarray:
        """Return how often each value of the error of the class in column `which` was observed, [N, values]."""
        if self.has_nan:
            raise ValueError("expected probabilities under noise, got NaN: look for the layer that produces it")
        return self.histograms[:, which].cpu().numpy()

    def samples(self) -> np.ndarray:
        """Return the number of samples of each image."""
        return self.counts().sum(1)

    def mean(self) -> np.ndarray:
        """Return the mean probabilities [N, C]."""
        return self.sums.cpu().numpy() * UNIT / np.maximum(self.samples(), 1)[:, None]
