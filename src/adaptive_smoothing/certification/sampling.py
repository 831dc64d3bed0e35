"""Answers of a classifier under Gaussian noise: batches full of samples of many images, counted image by image.

Sample number k of an image is the same whatever else is in the batch, however many are asked for at a time and
wherever a run was stopped. Its noise is drawn on the device, since drawing it elsewhere would take longer than the
answers: a GPU and a CPU draw other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.certification.bounds import PROBABILITIES, VOTES
from adaptive_smoothing.models.contract import check_logit_form, check_two_classes, trusted_images
from adaptive_smoothing.models.inference import float32_as
from adaptive_smoothing.noise import generator, to_device
from adaptive_smoothing.runs.sharded import check_size

# Samples of an image whose noise is drawn at once.
BLOCK = 128
BATCH = {"cuda": 4096, "cpu": 128}
# Sums of probabilities are kept as whole numbers of this, so that they do not depend on the order of summing.
UNIT = 2.0**-32
# More than float32 is off by in a sum of probabilities, by which doubts are made larger.
ROUNDING = 1e-5
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True)
class Sampler:
    """Noisy answers of `base`: its probabilities or, with `hard`, its votes, computed in `precision`, `compiled` if
    asked, which pays where there are very many.

    What is certified is the classifier in that precision.
    """

    base: nn.Module
    sigma: float
    hard: bool = False
    seed: int = 0
    precision: str = "float32"
    compiled: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)
        if self.precision not in PRECISIONS:
            raise ValueError(f"expected a precision among {', '.join(PRECISIONS)}, got {self.precision!r}")
        if not (self.sigma > 0 and np.isfinite(self.sigma)):
            raise ValueError(
                f"expected sigma > 0, got {self.sigma}: without noise there is nothing to certify with; for images in "
                "[0, 1] try 0.25, 0.5 or 1"
            )

    @cached_property
    def _network(self) -> Callable[[Tensor], Tensor]:
        return torch.compile(self.base, dynamic=True) if self.compiled else self.base

    @property
    def values(self) -> np.ndarray:
        """What a doubt can be."""
        return VOTES if self.hard else PROBABILITIES

    def draw(
        self, images: Tensor, index: Tensor, stream: str, first: int, last: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples `first` to `last` of every image: which image each is of, and its probabilities [samples, C]."""
        size, numbers = self.batch_size or BATCH.get(images.device.type, 1024), index.tolist()
        for jobs in _in_batches(len(images), first, last, size):
            counts = torch.tensor([stop - start for _, start, stop in jobs])
            rows = to_device(torch.tensor([row for row, _, _ in jobs]).repeat_interleave(counts), images.device)
            noise = torch.cat([self._noise(images, numbers[row], stream, *span) for row, *span in jobs])
            yield rows, self.answers(images[rows] + self.sigma * noise)

    def _noise(self, images: Tensor, index: int, stream: str, start: int, stop: int) -> Tensor:
        """Of samples of one block of an image."""
        block, offset = divmod(start, BLOCK)
        drawn = torch.randn(
            BLOCK,
            *images.shape[1:],
            generator=generator(self.seed, "certify", stream, index, block, device=images.device),
            device=images.device,
        )
        return drawn[offset : offset + stop - start]

    def answers(self, noisy: Tensor) -> Tensor:
        """To one batch of noisy images: probabilities, or votes, [samples, C]."""
        with torch.no_grad(), self._arithmetic(noisy.device.type):
            return self._answers(noisy)

    def _answers(self, noisy: Tensor) -> Tensor:
        if noisy.is_cuda:
            noisy = noisy.contiguous(memory_format=torch.channels_last)
        with trusted_images():
            logits = self._network(noisy)
        check_logit_form(logits, noisy)
        check_two_classes(logits)
        probabilities = logits.float().softmax(1)
        if not self.hard:
            return probabilities
        # argmax would make a vote of a NaN.
        votes = torch.zeros_like(probabilities).scatter(1, logits.argmax(1, keepdim=True), 1.0)
        return votes.masked_fill(logits.isnan().any(1, keepdim=True), torch.nan)

    def _arithmetic(self, device: str) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(float32_as("ieee" if self.precision == "float32" else "tf32"))
        stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=self.precision == "bfloat16"))
        return stack


def _in_batches(images: int, first: int, last: int, size: int) -> Iterator[list[tuple[int, int, int]]]:
    """(image, first sample, last sample) of blocks, some hundred of which fill a batch of at most `size` samples."""
    batch: list[tuple[int, int, int]] = []
    room = size
    for row in range(images):
        for start in range(first - first % BLOCK, last, BLOCK):
            begin, end = max(start, first), min(start + BLOCK, last)
            while begin < end:
                stop = min(end, begin + room)
                batch.append((row, begin, stop))
                room -= stop - begin
                begin = stop
                if not room:
                    yield batch
                    batch, room = [], size
    if batch:
        yield batch


class Tally:
    """What was seen of each image: sums of probabilities, and how often each doubt about its classes was seen.

    `classes` are those that are asked about, [N, K]: the doubt about the first of them is the probability of all
    others, that about any further one is its own.
    """

    def __init__(self, classes: Tensor, num_classes: int, values: np.ndarray) -> None:
        images, asked = classes.shape
        device = classes.device
        self.classes = classes
        self.values = torch.as_tensor(values, dtype=torch.float32, device=device)
        self.sums = torch.zeros(images, num_classes, dtype=torch.int64, device=device)
        self.seen = torch.zeros(images, asked, len(values), dtype=torch.int64, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)

    def add(self, rows: Tensor, probabilities: Tensor) -> None:
        """Samples of the images in these rows."""
        self.broken |= probabilities.isnan().any()
        self.sums.index_add_(0, rows, (probabilities.double() / UNIT).round().long())
        classes = self.classes[rows]
        doubts = probabilities.gather(1, classes)
        # Not 1 minus the first: a doubt of 1e-9 has its digits in the others.
        doubts[:, 0] = probabilities.scatter(1, classes[:, :1], 0.0).sum(1)
        # A NaN would have no place, and on a GPU take the process with it: it is refused when the counts are read.
        bins = torch.bucketize((doubts * (1 + ROUNDING)).nan_to_num(nan=1.0).clamp(0, 1), self.values)
        _, asked, values = self.seen.shape
        which = rows[:, None] * asked + torch.arange(asked, device=rows.device)
        places = (which * values + bins).flatten()
        self.seen.view(-1).index_add_(0, places, torch.ones_like(places))

    def counts(self, asked: int = 0) -> np.ndarray:
        """[N, values]: how often each doubt about one of the classes was seen."""
        if self.broken:
            raise ValueError("expected probabilities under noise, got NaN: look for the layer of the base that made it")
        return self.seen[:, asked].cpu().numpy()

    def samples(self) -> np.ndarray:
        return self.counts().sum(1)

    def mean(self) -> np.ndarray:
        """[N, C] average probabilities."""
        return self.sums.cpu().numpy() * UNIT / np.maximum(self.samples(), 1)[:, None]
