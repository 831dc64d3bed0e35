"""A trade-off on as many images as a given time allows: how fast is this machine, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, attack_count, join, tradeoff_parts
from adaptive_smoothing.models.inference import fp32_logits

Clock = Callable[[], float]

# An end-to-end attack leaves images that are wrong or fooled alone: of 20 passes, 9.2 remained on the pair inside
# the package at alphas from 0.5 to 0.9. It only shapes the plan: the clock has the last word.
PASSES_LEFT = 0.5
# A run of fewer batches may stop far from the end of its time; one of more is slowed by small batches.
BATCHES = 6
# A step on the pair inside the package took 57 ms an image on two cores in batches of 2, 39 in batches of 8 or more.
SMALLEST_BATCH = 8


@dataclass(frozen=True)
class Deadline:
    """A stretch of time that begins now."""

    seconds: float
    clock: Clock = time.perf_counter
    start: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self.clock())

    def gone(self) -> float:
        return self.clock() - self.start

    def left(self) -> float:
        return self.seconds - self.gone()


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
    predict = step = 0.0
    for _ in ("warm-up", "measured"):
        start = clock()
        for model in (standard, robust):
            fp32_logits(model, batch.images).sum().item()
        predicted = clock()
        for model in (standard, robust):
            short(model, batch.images, batch.labels).sum().item()
        predict, step = predicted - start, (clock() - predicted) / short.steps
    return Speed(predict / len(batch.labels), step / len(batch.labels))


def plan(seconds: float, per_image: float, available: int) -> Plan:
    """As many of the available images as fit, one at least."""
    images = max(1, min(available, int(seconds / max(per_image, 1e-9))))
    return Plan(images, min(images, max(SMALLEST_BATCH, images // BATCHES)))


def timed_tradeoff(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    deadline: Deadline,
    batch_size: int,
    mix_alphas: Sequence[float],
    watch: Callable[[int, float | None], None],
) -> tuple[Tradeoff, bool]:
    """The trade-off of the images that fit before the deadline, one batch at least; True if Ctrl-C ended it.

    `watch(images, seconds)` is called after each attack with the images done and the seconds the run will
    still take, as far as is known.
    """
    began, done = deadline.gone(), 0

    def tell(attacks: int = 1) -> None:
        pace = (deadline.gone() - began) / done if done else None
        watch(done, None if pace is None else min(deadline.left(), (len(data) - done) * pace))

    def count(part: Tradeoff) -> None:
        nonlocal done
        done += part.images
        tell()

    parts = tradeoff_parts(
        standard,
        robust,
        data,
        attack,
        mix_alphas=mix_alphas,
        batch_size=batch_size,
        progress=tell,
    )
    collected, interrupted = gather(within(deadline, parts), count)
    return join(collected), interrupted


def within(deadline: Deadline, parts: Iterable[Tradeoff]) -> Iterator[Tradeoff]:
    """The parts that fit: the first in any case, another while one as long as the last would end in time."""
    last = deadline.gone()
    for part in parts:
        took, last = deadline.gone() - last, deadline.gone()
        yield part
        if took > deadline.left():
            return


def gather(parts: Iterable[Tradeoff], each: Callable[[Tradeoff], None] | None = None) -> tuple[list[Tradeoff], bool]:
    """The parts that came, and whether Ctrl-C stopped them: what is measured is worth keeping."""
    done: list[Tradeoff] = []
    try:
        for part in parts:
            done.append(part)
            if each is not None:
                each(part)
    except KeyboardInterrupt:
        if not done:
            raise
        return done, True
    return done, False
