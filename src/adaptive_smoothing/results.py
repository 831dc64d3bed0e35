"""Result files, written atomically: JSON for facts and figures, .npz for one row per image. Shares and intervals."""

from __future__ import annotations

import errno
import json
import math
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to, which is renamed to `path` if no error occurs.

    If two processes write the same file, the last one to finish replaces the other's.
    """
    path = Path(path)
    _check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The number of a process does not tell two machines or containers apart that share a folder.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """Raise an error, before any work is done, if a file cannot be written, or exists and may not be replaced."""
    check_writable(path.parent, "choose another path")
    _check_regular(path)
    if path.exists() and not overwrite:
        hint = "choose another, or replace it with --overwrite (overwrite=True)"
        raise FileExistsError(f"expected a new file, got {path}, which exists: {hint}")


def check_writable(folder: Path, hint: str) -> None:
    """Raise an error if a folder cannot be written to, or is missing and cannot be made. It is not made here."""
    try:
        nearest = next(each for each in (folder, *folder.parents) if each.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise OSError(f"expected a folder that can be written to, got {folder} ({error.strerror}): {hint}") from error


@contextmanager
def room_for(folder: Path, hint: str) -> Iterator[None]:
    """Explain the error of a full disk, and raise any other error unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(error.errno, f"no space is left for {folder}: {hint}") from error


def _check_regular(path: Path) -> None:
    """Raise an error if something other than a file would be replaced, such as a device."""
    if path.exists() and not path.is_file():
        found = "a folder" if path.is_dir() else "a device or a pipe"
        raise FileExistsError(f"expected a file to write, got {path}, which is {found}: choose another name")


def write_text(path: str | Path, text: str) -> None:
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(path: str | Path, content: bytes) -> None:
    with atomic(path) as partial:
        partial.write_bytes(content)


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON, without NaN."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, default=_plain) + "\n")


def _plain(value: object) -> bool | int | float | str:
    """Return a number of NumPy as one of Python, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected numbers, texts, lists and dictionaries in a JSON file, got {value!r}: convert it")


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise an error for anything else."""
    try:
        content = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected JSON in {path}, got something else: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object in {path}, got {type(content).__name__}")
    return content


def write_rows(path: str | Path, columns: dict[str, np.ndarray]) -> None:
    """Write columns with one entry per image as a compressed .npz file."""
    with atomic(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **columns)  # type: ignore[arg-type]


def read_rows(path: str | Path) -> dict[str, np.ndarray]:
    """Return the columns in a .npz file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected one row per image in {path}, got no such file: copy the whole run folder")
    with np.load(path, allow_pickle=False) as columns:
        return dict(columns)


def interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share."""
    low, high = intervals(np.array(successes), trials, confidence).tolist()
    return low, high


def intervals(successes: np.ndarray, trials: int, confidence: float = 0.95) -> np.ndarray:
    """Return the Clopper-Pearson intervals of several shares of `trials`, one row (low, high) each."""
    from scipy.special import betaincinv  # scipy.stats.beta.ppf has the same numbers, and takes seconds to import

    failures, tail = trials - successes, (1 - confidence) / 2
    low = np.where(successes > 0, betaincinv(np.maximum(successes, 1), failures + 1, tail), 0.0)
    high = np.where(failures > 0, betaincinv(successes + 1, np.maximum(failures, 1), 1 - tail), 1.0)
    return np.stack([low, high], axis=-1)


def difference(mine: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return the mean difference over the same images, and half the width of its 95 % interval.

    It is the interval of Agresti and Min (2005), made symmetric. They add half an image to each of the four cases, both
    correct, one of them, or neither. So the interval has a width where all images agree.
    """
    change, images = mine.astype(float) - theirs.astype(float), len(mine) + 2
    mean, centre = float(change.mean()), float(change.sum()) / images
    variance = (float((change**2).sum()) + 1) / images - centre**2
    return mean, 1.96 * math.sqrt(variance / images) + abs(mean - centre)


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent, for example 90.1 %."""
    return f"{100 * share:.{digits}f} %"


def percent_with_interval(share: float, bounds: tuple[float, float], digits: int = 1) -> str:
    """Return a share and its interval in percent, for example 90.1 % (89.5 to 90.7)."""
    low, high = bounds
    return f"{percent(share, digits)} ({100 * low:.1f} to {100 * high:.1f})"


def signed_points(difference: float, digits: int = 1) -> str:
    """Return a difference of two shares in points, for example +0.3 or −1.2."""
    return f"{100 * difference:+.{digits}f}".replace("-", "−")
