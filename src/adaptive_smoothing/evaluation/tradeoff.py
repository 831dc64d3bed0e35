"""Accuracy against alpha for a fixed mixing weight: the paper's figure STD+ROB, and the gaps that explain it.

STD and ROB attacks are made on g and on h and transferred; MIX attacks the mixture end to end. Everything but
MIX follows exactly, for every alpha, from the probabilities of g and h on three sets of images (clean, STD,
ROB), so it is computed once and costs nothing per alpha. MIX at alpha 0 and 1 is the attack on g and on h.
The robustness of a mixture is what survives all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import mix_log_probabilities
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.results import intervals

CURVES = ("clean", "std", "rob", "mix", "worst")
ALPHAS = tuple(np.linspace(0, 1, 101).round(2).tolist())
MIX_ALPHAS = (0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1)


@dataclass(frozen=True)
class Tradeoff:
    """Per-image outcomes: columns of `rows`, one entry an image, with a leading alpha axis where it applies.

    index, label; clean, std, rob [alpha, image]: is the mixture right; mix [mixed alpha, image]: is it right
    and stays right under the end-to-end attack; {clean,std,rob}_{g,h}_gap: confidence of the prediction over
    the runner-up; {clean,std,rob}_{g,h}: is g or h right.
    """

    alphas: np.ndarray
    mix_alphas: np.ndarray
    rows: dict[str, np.ndarray]
    settings: dict[str, Any]

    @property
    def images(self) -> int:
        return len(self.rows["label"])

    def alphas_of(self, curve: str) -> np.ndarray:
        """Where a curve is known: `clean`, `std`, `rob` at `alphas`, `mix` and `worst` at `mix_alphas`."""
        return self.mix_alphas if curve in ("mix", "worst") else self.alphas

    def right(self, curve: str) -> np.ndarray:
        """[alpha, image]: is the mixture right. `worst` is right under MIX and both transferred attacks."""
        if curve != "worst":
            return self.rows[curve]
        at = np.searchsorted(self.alphas, self.mix_alphas)
        return self.rows["mix"] & self.rows["std"][at] & self.rows["rob"][at]

    def accuracy(self, curve: str) -> np.ndarray:
        """Accuracy at each of `alphas_of(curve)`."""
        return self.right(curve).mean(1)

    def intervals(self, curve: str) -> np.ndarray:
        """95 % Clopper-Pearson bounds, one row an alpha."""
        return intervals(self.right(curve).sum(1), self.images)

    def gaps(self) -> dict[str, dict[str, float | None]]:
        """The paper's tab:confidence: accuracy, and mean and median gap where the model is right and wrong.

        g and h are each looked at clean and under the attack that was made on them.
        """
        cells = {"g clean": "clean_g", "g pgd": "std_g", "h clean": "clean_h", "h pgd": "rob_h"}
        return {name: _gap_cell(self.rows[key], self.rows[f"{key}_gap"]) for name, key in cells.items()}

    def summary(self) -> dict[str, Any]:
        """What `result.json` holds: every figure, none of it typed by hand."""
        curves = {
            curve: {
                "alpha": self.alphas_of(curve).round(4).tolist(),
                "accuracy": self.accuracy(curve).tolist(),
                "interval": self.intervals(curve).tolist(),
            }
            for curve in CURVES
        }
        return {"images": self.images, "settings": self.settings, "curves": curves, "gaps": self.gaps()}


def _gap_cell(right: np.ndarray, gap: np.ndarray) -> dict[str, float | None]:
    def statistic(function: Callable[..., Any], values: np.ndarray) -> float | None:
        return float(function(values)) if len(values) else None

    return {
        "accuracy": float(right.mean()),
        "right_mean": statistic(np.mean, gap[right]),
        "right_median": statistic(np.median, gap[right]),
        "wrong_mean": statistic(np.mean, gap[~right]),
        "wrong_median": statistic(np.median, gap[~right]),
    }


def tradeoff(standard: nn.Module, robust: nn.Module, data: ImageData, attack: PGD, **options: Any) -> Tradeoff:
    """Measure the mixture of `standard` and `robust` at every alpha, clean and under STD, ROB, MIX attacks.

    The options are those of `tradeoff_parts`: alphas, mix_alphas, batch_size, progress.
    """
    return join(list(tradeoff_parts(standard, robust, data, attack, **options)))


def tradeoff_parts(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    alphas: Sequence[float] = ALPHAS,
    mix_alphas: Sequence[float] = MIX_ALPHAS,
    batch_size: int = 1000,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Tradeoff]:
    """The same a batch at a time, for those who may have to stop early; `join` puts the parts together.

    `progress` is called with 1 each time an attack on a batch is done; `attack_count` tells how many.
    """
    device = next(robust.parameters()).device
    alphas = sorted({*alphas, *mix_alphas})
    if not 0 <= alphas[0] <= alphas[-1] <= 1:
        raise ValueError(f"expected alphas in [0, 1], got {alphas[0]:g} to {alphas[-1]:g}")
    settings = {
        "data": data.name,
        "fingerprint": data.fingerprint(),
        "norm": attack.threat.norm,
        "eps": attack.threat.eps,
        "steps": attack.steps,
        "random_start": attack.random_start,
        "step_size": attack.step_size,
    }
    for batch in batches(data, batch_size, device=device):
        row = _measure(standard, robust, batch, attack, alphas, mix_alphas, progress or (lambda done: None))
        rows = {name: column.cpu().numpy() for name, column in row.items()}
        yield Tradeoff(np.asarray(alphas, float), np.asarray(mix_alphas, float), rows, settings)


def join(parts: Sequence[Tradeoff]) -> Tradeoff:
    """One trade-off over the images of all parts of a run."""
    if not parts:
        raise ValueError("expected a trade-off of at least one image, got none: is the data set empty?")
    names = parts[0].rows
    rows = {name: np.concatenate([part.rows[name] for part in parts], axis=-1) for name in names}
    return replace(parts[0], rows=rows)


def attack_count(images: int, batch_size: int, mix_alphas: Sequence[float]) -> int:
    """How many attacks on batches a run makes: STD, ROB, and MIX at each alpha that is a real mixture."""
    return -(-images // batch_size) * (2 + sum(alpha not in (0, 1) for alpha in mix_alphas))


def _measure(
    standard: nn.Module,
    robust: nn.Module,
    batch: Batch,
    attack: PGD,
    alphas: Sequence[float],
    mix_alphas: Sequence[float],
    tick: Callable[[int], None],
) -> dict[str, Tensor]:
    images, labels = batch.images, batch.labels
    row, views = {"index": batch.index, "label": labels}, {"clean": images}
    for view, model in (("std", standard), ("rob", robust)):
        views[view] = attack(model, images, labels)
        tick(1)
    for view, seen in views.items():
        row |= _transferred(view, standard, robust, seen, labels, alphas)
    # At its ends the mixture is g or h, which have been attacked end to end already.
    known = {0: row["clean_g"] & row["std_g"], 1: row["clean_h"] & row["rob_h"]}
    survived = []
    for alpha in mix_alphas:
        if alpha not in known:
            survived.append(_attacked(MixedClassifier(standard, robust, alpha), images, labels, attack))
            tick(1)
        else:
            survived.append(known[int(alpha)])
    row["mix"] = torch.stack(survived) if survived else labels.new_empty((0, len(labels)), dtype=torch.bool)
    return row


def _transferred(
    view: str, standard: nn.Module, robust: nn.Module, images: Tensor, labels: Tensor, alphas: Sequence[float]
) -> dict[str, Tensor]:
    log = {name: fp32_logits(model, images).log_softmax(1) for name, model in (("g", standard), ("h", robust))}
    right = [mix_log_probabilities(log["g"], log["h"], alpha).argmax(1) == labels for alpha in alphas]
    row = {view: torch.stack(right)}
    for name, log_probabilities in log.items():
        first, second = log_probabilities.exp().topk(2).values.unbind(1)
        row[f"{view}_{name}"] = log_probabilities.argmax(1) == labels
        row[f"{view}_{name}_gap"] = first - second
    return row


def _attacked(mixed: MixedClassifier, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    """Which images it gets right and keeps right. Wrong ones are not attacked, fooled ones not again."""
    stands = fp32_logits(mixed, images).argmax(1) == labels
    if stands.any():
        adversarial = replace(attack, stop_when_fooled=True)(mixed, images[stands], labels[stands])
        stands[stands.clone()] = fp32_logits(mixed, adversarial).argmax(1) == labels[stands]
    return stands
