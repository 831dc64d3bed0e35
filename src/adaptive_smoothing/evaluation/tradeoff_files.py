"""Trade-offs as files: `result.json` with the figures and the facts, `rows.npz` with one entry per image.

Each image is correct on an interval of alphas, so that the columns are nearly constant along alpha: packed that way,
10,000 images at 101 alphas compress to about 180 kB.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.results import read_json, read_rows, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

PACKED = ".bits"


def save_tradeoff(folder: str | Path, tradeoff: Tradeoff, facts: dict[str, Any]) -> None:
    """Write `tradeoff` into `folder`, with facts about the run: models, versions, seconds, ..."""
    columns = {"alphas": tradeoff.alphas, "mix_alphas": tradeoff.mix_alphas}
    for name, column in tradeoff.rows.items():
        columns |= _compact(name, column)
    write_rows(Path(folder) / ROWS, columns)
    # Written last, so that a folder with a result always has its rows.
    write_json(Path(folder) / RESULT, {**tradeoff.summary(), "facts": facts})


def load_tradeoff(folder: str | Path) -> Tradeoff:
    """Return the trade-off that `save_tradeoff` wrote; gaps are stored in half precision."""
    result = _read(folder, RESULT, read_json)
    columns = _read(folder, ROWS, read_rows)
    try:
        alphas, mix_alphas = columns.pop("alphas"), columns.pop("mix_alphas")
        images = len(columns["label"])
        lengths = {"clean": len(alphas), "std": len(alphas), "rob": len(alphas), "mix": len(mix_alphas)}
        rows = dict(_expand(name, column, lengths, images) for name, column in columns.items())
        return Tradeoff(alphas, mix_alphas, rows, result["settings"])
    except KeyError as error:
        raise ValueError(
            f"expected a trade-off in {folder}, got files without {error}: write it with save_tradeoff"
        ) from error


def load_facts(folder: str | Path) -> dict[str, Any]:
    """Return the facts about the run of a stored trade-off."""
    return _read(folder, RESULT, read_json).get("facts", {})


def has_tradeoff(folder: str | Path) -> bool:
    return all((Path(folder) / name).is_file() for name in (RESULT, ROWS))


def _read(folder: str | Path, name: str, reader: Callable[[Path], Any]) -> Any:
    path = Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a run folder with {RESULT} and {ROWS}, found no {path}: `adaptive-smoothing sweep` writes one"
        )
    return reader(path)


def _compact(name: str, column: np.ndarray) -> dict[str, np.ndarray]:
    if column.dtype == bool:
        return {name + PACKED: np.packbits(column, axis=0)}
    if np.issubdtype(column.dtype, np.floating):
        return {name: column.astype(np.float16)}
    return {name: column.astype(np.min_scalar_type(column.max(initial=0)))}


def _expand(name: str, column: np.ndarray, lengths: dict[str, int], images: int) -> tuple[str, np.ndarray]:
    if name.endswith(PACKED):
        name = name.removesuffix(PACKED)
        return name, np.unpackbits(column, axis=0, count=lengths.get(name, images)).astype(bool)
    # Wider types, because means of half-precision numbers would be taken in half precision.
    wide = np.float32 if np.issubdtype(column.dtype, np.floating) else np.int64
    return name, column.astype(wide)
