"""Measuring as much as a given time allows: how fast is this machine, how many images fit, when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import verdict_logits
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, attack_count

Clock = Callable[[], float]

# An end-to-end attack leaves images that are wrong or fooled alone; this share of its passes remained on the pair
# inside the package, over the alphas the demo attacks. It only shapes the first plan: the clock has the last word.
PASSES_LEFT = 0.6
# A run of fewer batches stops too far from the end of its time; one of more is slowed by small batches.
BATCHES = 12


@dataclass(frozen=True)
class Speed:
    """Seconds per image on this machine: to predict it with both models, and one attack step on both."""

    predict: float
    step: float

    def per_image(self, steps: int, mix_alphas: Sequence[float]) -> float:
        """What one image of a trade-off is expected to cost."""
        mixed = attack_count(1, 1, mix_alphas) - 2
        return self.step * steps * (1 + PASSES_LEFT * mixed) + self.predict


@dataclass(frozen=True)
class Plan:
    """How many images are expected to fit, and in batches of how many."""

    images: int
    batch_size: int


def measure_speed(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    images: int = 8,
    clock: Clock = time.perf_counter,
) -> Speed:
    """Try both models on a few images; the first round warms up and is not counted."""
    device = next(robust.parameters()).device
    batch = next(iter(batches(data.take(min(images, len(data))), images, device=device)))
    short = replace(attack, steps=2, stop_when_fooled=False)
    seconds = {}
    for _ in ("warm-up", "measured"):
        start = clock()
        for model in (standard, robust):
            verdict_logits(model, batch.images).sum().item()
        predicted = clock()
        for model in (standard, robust):
            short(model, batch.images, batch.labels).sum().item()
        seconds = {"predict": predicted - start, "step": (clock() - predicted) / short.steps}
    return Speed(**{what: value / len(batch.labels) for what, value in seconds.items()})


def plan(seconds: float, per_image: float, available: int) -> Plan:
    """As many of the available images as fit, one at least."""
    images = max(1, min(available, int(seconds / max(per_image, 1e-9))))
    return Plan(images, max(1, min(128, images // BATCHES)))


def within(seconds: float, parts: Iterable[Tradeoff], clock: Clock = time.perf_counter) -> Iterator[Tradeoff]:
    """The parts that fit: the first in any case, another while one as long as the last would end in time."""
    began = last = clock()
    for part in parts:
        now = clock()
        took, last = now - last, now
        yield part
        if last - began + took > seconds:
            return


def gather(parts: Iterable[Tradeoff], each: Callable[[Tradeoff], None]) -> tuple[list[Tradeoff], bool]:
    """The parts that came, and whether Ctrl-C stopped them: what is measured is worth keeping."""
    done: list[Tradeoff] = []
    try:
        for part in parts:
            done.append(part)
            each(part)
    except KeyboardInterrupt:
        if not done:
            raise
        return done, True
    return done, False
