from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from adaptive_smoothing.evaluation.budget import (
    Deadline,
    Speed,
    gather,
    measure_speed,
    plan,
    timed_tradeoff,
    within,
)
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import ImageData, from_tensors
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, attack_count, join, tradeoff, tradeoff_parts
from adaptive_smoothing.results import interval
from adaptive_smoothing.threat import Linf

ATTACK = PGD(Linf(8 / 255), steps=3)


@dataclass
class Clock:
    """Shows what it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pair(linear: nn.Module) -> tuple[nn.Module, nn.Module]:
    return linear, type(linear)(seed=1)


@pytest.fixture
def data(linear: nn.Module) -> ImageData:
    pixels = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        labels = linear(pixels / 255).argmax(1)
    return from_tensors(pixels, labels, classes="abcd")


def test_parts_join_to_the_whole(pair: tuple, data: ImageData) -> None:
    whole = tradeoff(*pair, data, ATTACK)
    joined = join(list(tradeoff_parts(*pair, data, ATTACK, batch_size=7)))
    assert all(np.array_equal(whole.rows[name], joined.rows[name]) for name in whole.rows if "gap" not in name)
    assert joined.settings == whole.settings and joined.images == 20


def test_the_ends_of_mix_are_the_attacks_on_g_and_h(pair: tuple, data: ImageData) -> None:
    ticks: list[int] = []
    run = tradeoff(*pair, data, ATTACK, mix_alphas=(0, 1e-12, 1 - 1e-7, 1), progress=ticks.append)
    # An end-to-end attack next to the ends agrees with what was reused at them.
    assert np.array_equal(run.rows["mix"][0], run.rows["mix"][1])
    assert np.array_equal(run.rows["mix"][3], run.rows["mix"][2])
    assert len(ticks) == attack_count(20, 1000, run.mix_alphas.tolist()) == 4


def test_intervals_are_clopper_pearson(pair: tuple, data: ImageData) -> None:
    run = tradeoff(*pair, data, ATTACK, mix_alphas=(0, 0.5, 1))
    run.rows["mix"][0], run.rows["mix"][2] = False, True
    expected = [interval(int(right.sum()), 20) for right in run.rows["mix"]]
    assert np.allclose(run.intervals("mix"), expected)


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        join([])


def test_speed_and_plan(pair: tuple, data: ImageData) -> None:
    speed = measure_speed(*pair, data, ATTACK)
    assert speed.predict > 0 and speed.step > 0
    assert Speed(0.1, 1.0).per_image(20, (0, 1)) == pytest.approx(20.1)
    assert Speed(0.1, 1.0).per_image(20, (0, 0.5, 1)) >= 30
    assert plan(100, 2.0, 1000).images == 50 and plan(100, 2.0, 1000).batch_size == 8
    assert plan(24, 2.0, 1000).images == 12 and plan(24, 2.0, 1000).batch_size == 8
    assert plan(10, 2.0, 1000).images == plan(10, 2.0, 1000).batch_size == 5
    assert plan(1000, 2.0, 1000).batch_size == 83
    assert plan(100, 1e-3, 1000).images == 1000
    assert plan(-5, 2.0, 1000).images == plan(1, 2.0, 1000).batch_size == 1


def paced(clock: Clock, seconds: float, part: Tradeoff) -> Iterator[Tradeoff]:
    while True:
        clock.now += seconds
        yield part


@pytest.mark.parametrize(("seconds", "expected"), [(100, 3), (90, 3), (89, 2), (1, 1)])
def test_parts_stop_before_the_deadline(pair: tuple, data: ImageData, seconds: float, expected: int) -> None:
    clock = Clock()
    (part,) = tradeoff_parts(*pair, data.take(2), ATTACK, mix_alphas=(0.5,))
    parts = list(within(Deadline(seconds, clock), paced(clock, 30, part)))
    assert len(parts) == expected


def test_ctrl_c_keeps_what_is_done(pair: tuple, data: ImageData) -> None:
    (part,) = tradeoff_parts(*pair, data.take(2), ATTACK, mix_alphas=(0.5,))

    def interrupted(after: int) -> Iterator[Tradeoff]:
        yield from [part] * after
        raise KeyboardInterrupt

    assert gather(interrupted(2)) == ([part, part], True)
    with pytest.raises(KeyboardInterrupt):
        gather(interrupted(0))


def test_a_timed_run_tells_what_is_left(pair: tuple, data: ImageData) -> None:
    told: list[tuple[int, float | None]] = []
    clock = Clock()

    def watch(images: int, seconds: float | None) -> None:
        clock.now += 1
        told.append((images, seconds))

    run, interrupted = timed_tradeoff(
        *pair, data, ATTACK, deadline=Deadline(50, clock), batch_size=5, mix_alphas=(0.5,), watch=watch
    )
    assert run.images == 20 and not interrupted
    assert told[0] == (0, None) and told[-1][0] == 20 and told[-1][1] == 0
    assert {0.5} < set(run.alphas)
