"""The clock of all benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def clocked(work: Callable[[], Result]) -> tuple[Result, float]:
    """What came out, and the seconds it took, with all that a GPU had to do finished before and after."""
    _finish()
    began = time.perf_counter()
    result = work()
    _finish()
    return result, time.perf_counter() - began


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
