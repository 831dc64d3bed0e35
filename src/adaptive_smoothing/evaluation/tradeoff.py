"""The trade-off of a mixture over alpha: accuracy curves and confidence gaps from one row per image, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.gaps import GapStatistics, gap_statistics
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.results import intervals, read_rows, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS, read_result, with_schema

CURVES = ("clean", "std", "rob", "mix", "worst")
# Default alphas of the curves, and those at which the mixture is attacked end to end.
ALPHAS = tuple(np.linspace(0, 1, 101).round(2).tolist())
MIX_ALPHAS = (0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1)
# Ending of the names of columns that are stored as bits.
PACKED = ".bits"


@dataclass(frozen=True, repr=False)
class Tradeoff:
    """Whether the mixture classifies each image correctly at each alpha, clean and under three attacks.

    The last axis of every column of `rows` is the image. The columns are:

    - index, label
    - clean, std, rob [alpha, image]: whether the mixture is correct on clean and on transferred images
    - mix [alpha of `mix_alphas`, image]: whether it is correct both before and after the end-to-end attack
    - clean_g, clean_h, std_g, std_h, rob_g, rob_h: whether g or h is correct on the same images
    - clean_g_gap, ...: the confidence gap of g or h on the same images

    Args:
        pictures: some of the images, for a page; None for a stored run.
    """

    alphas: np.ndarray
    mix_alphas: np.ndarray
    rows: dict[str, np.ndarray]
    settings: dict[str, Any]
    pictures: Pictures | None = None

    def __repr__(self) -> str:
        return f"Tradeoff: {self.images:,} images, {len(self.alphas)} alphas, {len(self.mix_alphas)} of them attacked"

    @property
    def images(self) -> int:
        """The number of images."""
        return len(self.rows["label"])

    def alphas_of(self, curve: str) -> np.ndarray:
        """Return the alphas of a curve: `mix_alphas` for `mix` and `worst`, `alphas` for the others."""
        return self.mix_alphas if curve in ("mix", "worst") else self.alphas

    def correct(self, curve: str) -> np.ndarray:
        """Return whether the mixture is correct [alpha, image]; for `worst`, under all three attacks."""
        if curve != "worst":
            return self.rows[curve]
        at = np.searchsorted(self.alphas, self.mix_alphas)
        return self.rows["mix"] & self.rows["std"][at] & self.rows["rob"][at]

    def accuracy(self, curve: str) -> np.ndarray:
        """Return the accuracy at each of `alphas_of(curve)`."""
        return self.correct(curve).mean(1)

    def intervals(self, curve: str) -> np.ndarray:
        """Return 95 % Clopper-Pearson bounds, one row per alpha."""
        return intervals(self.correct(curve).sum(1), self.images)

    def gaps(self) -> dict[str, GapStatistics]:
        """Return the confidence gaps of g and of h, clean and under the attack on each (the paper's tab:confidence)."""
        cells = {"g clean": "clean_g", "g pgd": "std_g", "h clean": "clean_h", "h pgd": "rob_h"}
        return {name: gap_statistics(self.rows[key], self.rows[f"{key}_gap"]) for name, key in cells.items()}

    def summary(self) -> dict[str, Any]:
        """Return the figures for `result.json`."""
        curves = {
            curve: {
                "alpha": self.alphas_of(curve).round(4).tolist(),
                "accuracy": self.accuracy(curve).tolist(),
                "interval": self.intervals(curve).tolist(),
            }
            for curve in CURVES
        }
        return {"images": self.images, "settings": self.settings, "curves": curves, "gaps": self.gaps()}


def save_tradeoff(folder: str | Path, tradeoff: Tradeoff, facts: dict[str, Any]) -> None:
    """Write a trade-off to a run folder, with facts about the run: models, versions, seconds, ..."""
    columns = {"alphas": tradeoff.alphas, "mix_alphas": tradeoff.mix_alphas}
    for name, column in tradeoff.rows.items():
        columns |= _compact(name, column)
    write_rows(Path(folder) / ROWS, columns)
    if tradeoff.pictures is not None:
        tradeoff.pictures.save(folder)
    # Written last, so that a folder with a result always has its rows.
    write_json(Path(folder) / RESULT, with_schema("tradeoff", {**tradeoff.summary(), "facts": facts}))


def load_tradeoff(folder: str | Path) -> Tradeoff:
    """Return the trade-off that `save_tradeoff` wrote; gaps are stored in half precision."""
    result, columns = read_result(folder, "tradeoff"), read_rows(Path(folder) / ROWS)
    try:
        alphas, mix_alphas = columns.pop("alphas"), columns.pop("mix_alphas")
        images = len(columns["label"])
        lengths = dict.fromkeys(("clean", "std", "rob"), len(alphas)) | {"mix": len(mix_alphas)}
        rows = dict(_expand(name, column, lengths, images) for name, column in columns.items())
        return Tradeoff(alphas, mix_alphas, rows, result["settings"])
    except KeyError as error:
        hint = "write it with save_tradeoff"
        raise ValueError(f"expected a trade-off in {folder}, got files without {error}: {hint}") from error


def load_facts(folder: str | Path) -> dict[str, Any]:
    """Return the facts about the run of a stored trade-off."""
    return read_result(folder, "tradeoff").get("facts", {})


def _compact(name: str, column: np.ndarray) -> dict[str, np.ndarray]:
    """Return a column in few bytes: truth values as bits, floats in half precision, integers as short as possible."""
    if column.dtype == bool:
        return {name + PACKED: np.packbits(column, axis=0)}
    if np.issubdtype(column.dtype, np.floating):
        return {name: column.astype(np.float16)}
    return {name: column.astype(np.min_scalar_type(column.max(initial=0)))}


def _expand(name: str, column: np.ndarray, lengths: dict[str, int], images: int) -> tuple[str, np.ndarray]:
    """Return the name and the values of a column that `_compact` stored."""
    if name.endswith(PACKED):
        name = name.removesuffix(PACKED)
        return name, np.unpackbits(column, axis=0, count=lengths.get(name, images)).astype(bool)
    # Wider types, because means of half-precision numbers would be taken in half precision.
    return name, column.astype(np.float32 if np.issubdtype(column.dtype, np.floating) else np.int64)
