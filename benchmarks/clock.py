"""Time measurement for the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def clocked(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of `work` and the seconds it took. Waits for the GPU before and after."""
    _finish()
    began = time.perf_counter()
    result = work()
    _finish()
    return result, time.perf_counter() - began


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
