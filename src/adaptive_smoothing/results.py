"""Results as files: a JSON of facts and figures, and one raw row per image beside it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def intervals(successes: np.ndarray, trials: int, confidence: float = 0.95) -> np.ndarray:
    """Clopper-Pearson bounds of shares of the same number of trials, one row (low, high) each."""
    from scipy.stats import beta  # a second of importing, which only those who ask for bounds should wait

    right = np.asarray(successes)
    wrong, tail = trials - right, (1 - confidence) / 2
    low = np.where(right > 0, beta.ppf(tail, np.maximum(right, 1), wrong + 1), 0.0)
    high = np.where(wrong > 0, beta.ppf(1 - tail, right + 1, np.maximum(wrong, 1)), 1.0)
    return np.stack([low, high], axis=-1)


def interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a share."""
    low, high = intervals(np.array(successes), trials, confidence).tolist()
    return low, high


def difference(mine: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Mean over the same images of the one minus the other, and half the width of its 95 % interval."""
    change = mine.astype(float) - theirs.astype(float)
    return float(change.mean()), 1.96 * float(change.std()) / math.sqrt(len(change))


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Write to the path this yields; it becomes `path` when all went well, so that a file is whole or absent.

    Two processes may write the same file: the last one to finish wins.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Small enough to read and stable enough to compare."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    return json.loads(Path(path).read_text())


def write_rows(path: str | Path, columns: dict[str, np.ndarray]) -> None:
    """One entry per image in each column, compressed."""
    with atomic(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **columns)  # type: ignore[arg-type]


def read_rows(path: str | Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as columns:
        return dict(columns)
