"""Accuracy as a function of a fixed alpha: the paper's figure STD+ROB, the confidence gaps that explain it, its files.

STD and ROB attack g and h, and the result is transferred to the mixture; MIX attacks the mixture end to end. Apart from
MIX everything follows, for every alpha, from the probabilities of g and h on three sets of images (clean, STD, ROB), so
that it is computed once. MIX at alpha 0 and 1 is the attack on g and on h. A mixture is robust on the images that
survive all three. The curves are samples on a grid of alphas; `tuning.curves` has the exact clean accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.verdict import GapStatistics, confidence_gap, gap_statistics
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import mix_log_probabilities
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.results import intervals, read_json, read_rows, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS
from adaptive_smoothing.runs.progress import ignore_progress

CURVES = ("clean", "std", "rob", "mix", "worst")
ALPHAS = tuple(np.linspace(0, 1, 101).round(2).tolist())
MIX_ALPHAS = (0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1)
BATCH = 1000
# Ending of the names of columns that are stored as bits.
PACKED = ".bits"
# Called with the number of attacks on batches that were finished since the last call.
CountCallback = Callable[[int], None]
Pair = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class Tradeoff:
    """Results per image: `rows` has one entry per image in each column.

    index, label; clean, std, rob [alpha, image]: is the mixture correct; mix [alpha of `mix_alphas`, image]: is it
    correct before and after the end-to-end attack; {clean,std,rob}_{g,h}: is g or h correct; .._gap: confidence gap.
    """

    alphas: np.ndarray
    mix_alphas: np.ndarray
    rows: dict[str, np.ndarray]
    settings: dict[str, Any]

    @property
    def images(self) -> int:
        return len(self.rows["label"])

    def alphas_of(self, curve: str) -> np.ndarray:
        """Return the alphas of a curve: `mix_alphas` for `mix` and `worst`, `alphas` for the others."""
        return self.mix_alphas if curve in ("mix", "worst") else self.alphas

    def correct(self, curve: str) -> np.ndarray:
        """Return [alpha, image]: is the mixture correct; for `worst`, under MIX and both transferred attacks."""
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
        """Return the paper's tab:confidence: gaps of g and of h, clean and under the attack made on each."""
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


def tradeoff(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    alphas: Sequence[float] = ALPHAS,
    mix_alphas: Sequence[float] = MIX_ALPHAS,
    batch_size: int = BATCH,
    progress: CountCallback = ignore_progress,
) -> Tradeoff:
    """Measure the mixture of `standard` and `robust` at every alpha, clean and under the STD, ROB and MIX attacks.

    Args:
        alphas: the grid of the clean, STD and ROB curves; `mix_alphas` are added to it.
        mix_alphas: where the mixture is attacked end to end.
        progress: called with 1 after each attack on a batch; `attack_count` returns their number.
    """
    parts = tradeoff_parts(
        standard, robust, data, attack, alphas=alphas, mix_alphas=mix_alphas, batch_size=batch_size, progress=progress
    )
    return join(list(parts))


def tradeoff_parts(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    alphas: Sequence[float] = ALPHAS,
    mix_alphas: Sequence[float] = MIX_ALPHAS,
    batch_size: int = BATCH,
    progress: CountCallback = ignore_progress,
) -> Iterator[Tradeoff]:
    """Yield the trade-off of one batch at a time, for runs that may be stopped early; `join` puts them together."""
    alphas = sorted({*alphas, *mix_alphas})
    if not 0 <= alphas[0] <= alphas[-1] <= 1:
        raise ValueError(f"expected alphas in [0, 1], got {alphas[0]:g} to {alphas[-1]:g}")
    threat = attack.threat
    settings = {"data": data.name, "fingerprint": data.fingerprint(), "norm": threat.norm, "eps": threat.eps}
    settings |= {name: getattr(attack, name) for name in ("steps", "random_start", "step_size")}
    for batch in batches(data, batch_size, device=next(robust.parameters()).device):
        row = _measure((standard, robust), batch, attack, alphas, mix_alphas, progress)
        rows = {name: column.cpu().numpy() for name, column in row.items()}
        yield Tradeoff(np.asarray(alphas, float), np.asarray(mix_alphas, float), rows, settings)


def join(parts: Sequence[Tradeoff]) -> Tradeoff:
    """Return one trade-off over the images of all parts of a run."""
    if not parts:
        raise ValueError("expected a trade-off of at least one image, got none: is the data set empty?")
    rows = {name: np.concatenate([part.rows[name] for part in parts], axis=-1) for name in parts[0].rows}
    return replace(parts[0], rows=rows)


def attack_count(images: int, batch_size: int, mix_alphas: Sequence[float]) -> int:
    """Return how many attacks on batches a run makes: STD, ROB, and MIX at each alpha between 0 and 1."""
    return -(-images // batch_size) * (2 + sum(alpha not in (0, 1) for alpha in mix_alphas))


def _measure(
    pair: Pair, batch: Batch, attack: PGD, alphas: Sequence[float], mix_alphas: Sequence[float], progress: CountCallback
) -> dict[str, Tensor]:
    images, labels = batch.images, batch.labels
    row, views = {"index": batch.index, "label": labels}, {"clean": images}
    for view, model in zip(("std", "rob"), pair, strict=True):
        views[view] = attack(model, images, labels)
        progress(1)
    for view, seen in views.items():
        row |= _transferred(view, pair, seen, labels, alphas)
    # At alpha 0 and 1 the mixture is g or h, which have been attacked end to end already.
    known = {0: row["clean_g"] & row["std_g"], 1: row["clean_h"] & row["rob_h"]}
    mix = []
    for alpha in mix_alphas:
        if alpha in known:
            mix.append(known[int(alpha)])
        else:
            mix.append(_robust(MixedClassifier(*pair, alpha), images, labels, attack))
            progress(1)
    row["mix"] = torch.stack(mix) if mix else labels.new_empty((0, len(labels)), dtype=torch.bool)
    return row


def _transferred(view: str, pair: Pair, images: Tensor, labels: Tensor, alphas: Sequence[float]) -> dict[str, Tensor]:
    """Return which of these images g, h and the mixture at every alpha classify correctly, and the gaps of g and h."""
    g, h = (fp32_logits(model, images).log_softmax(1) for model in pair)
    row = {view: torch.stack([mix_log_probabilities(g, h, alpha).argmax(1) == labels for alpha in alphas])}
    for name, log_probabilities in (("g", g), ("h", h)):
        row[f"{view}_{name}"] = log_probabilities.argmax(1) == labels
        row[f"{view}_{name}_gap"] = confidence_gap(log_probabilities.exp())
    return row


def _robust(mixed: MixedClassifier, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    """Return which images are correct before and after the attack, which stops at images that are fooled."""
    robust = fp32_logits(mixed, images).argmax(1) == labels
    if robust.any():
        adversarial = replace(attack, stop_when_fooled=True)(mixed, images[robust], labels[robust])
        robust[robust.clone()] = fp32_logits(mixed, adversarial).argmax(1) == labels[robust]
    return robust


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
    result, columns = _read(folder, RESULT, read_json), _read(folder, ROWS, read_rows)
    try:
        alphas, mix_alphas = columns.pop("alphas"), columns.pop("mix_alphas")
        images = len(columns["label"])
        lengths = dict.fromkeys(("clean", "std", "rob"), len(alphas)) | {"mix": len(mix_alphas)}
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
    return name, column.astype(np.float32 if np.issubdtype(column.dtype, np.floating) else np.int64)
