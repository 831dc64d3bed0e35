"""`tradeoff`: accuracy as a function of a fixed alpha, clean and under three attacks (the paper's figure STD+ROB).

STD and ROB attack g and h, and the result is transferred to the mixture; MIX attacks the mixture end to end. Apart from
MIX, everything follows from the probabilities of g and h on three sets of images (clean, STD, ROB). They are computed
once and mixed at every alpha. MIX at alpha 0 and 1 is the attack on g and on h. The curves are samples on a grid of
alphas; `tuning.curves` has the exact clean accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation.gaps import confidence_gap
from adaptive_smoothing.evaluation.pictures import Pictures, pictured_rows
from adaptive_smoothing.evaluation.tradeoff import ALPHAS, MIX_ALPHAS, Tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.formula import mix_log_probabilities
from adaptive_smoothing.models.fit import warn_if_unfit
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.runs.progress import CountCallback, ignore_progress
from adaptive_smoothing.settings.checks import check_numbers

Pair = tuple[nn.Module, nn.Module]


class KeptImages(NamedTuple):
    """Images of a batch that become pictures, and the probabilities of g and h on them, each by name."""

    versions: dict[str, Tensor]
    probabilities: dict[str, Tensor]


@memory_given_back()
def tradeoff(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    alphas: Sequence[float] = ALPHAS,
    mix_alphas: Sequence[float] = MIX_ALPHAS,
    batch_size: int = 1000,
    pictures: int = 100,
    progress: CountCallback = ignore_progress,
    keep_on_interrupt: bool = False,
) -> Tradeoff:
    """Measure the mixture of `standard` and `robust` at every alpha, clean and under the STD, ROB and MIX attacks.

    Args:
        attack: PGD, with the threat.
        alphas: the grid of the clean, STD and ROB curves; `mix_alphas` are added to it.
        mix_alphas: where the mixture is attacked end to end.
        pictures: how many images to keep for a page, drawn at random.
        progress: called with 1 after each attack on a batch; `attack_count` returns their number.
        keep_on_interrupt: after Ctrl-C, return the trade-off of the batches that are finished, if there are any.

    Examples:
        >>> found = ads.tradeoff(g, h, data, ads.PGD(threat, steps=1), mix_alphas=(0, 0.5, 1))
        >>> found.accuracy("worst").shape  # under all three attacks, at each alpha of mix_alphas
        (3,)
    """
    check_data(data)
    warn_if_unfit(robust, data)
    if not isinstance(attack, PGD):
        raise TypeError(f"expected PGD as the attack, got {attack!r}: pass ads.PGD(ads.Linf(8 / 255))")
    mix_alphas = check_numbers("mix_alphas", mix_alphas)
    alphas = sorted({*check_numbers("alphas", alphas), *mix_alphas})
    if not 0 <= alphas[0] <= alphas[-1] <= 1:
        raise ValueError(f"expected alphas in [0, 1], got {alphas[0]:g} to {alphas[-1]:g}")
    threat = attack.threat
    settings = {"data": data.name, "fingerprint": data.fingerprint(), "norm": threat.norm, "eps": threat.eps}
    settings |= {name: getattr(attack, name) for name in ("steps", "random_start", "step_size")}
    finished: list[dict[str, np.ndarray]] = []
    kept: list[KeptImages] = []
    pictured = pictured_rows(data, pictures)
    try:
        for batch in batches(data, batch_size, device=device_of(robust, data)):
            first = sum(len(part["label"]) for part in finished)
            keep = pictured[(pictured >= first) & (pictured < first + len(batch.labels))] - first
            measured, images = _measure((standard, robust), batch, attack, alphas, mix_alphas, keep, progress)
            finished.append({name: column.cpu().numpy() for name, column in measured.items()})
            kept.append(images)
    except KeyboardInterrupt:
        if not keep_on_interrupt or not finished:
            raise
    rows = {name: np.concatenate([part[name] for part in finished], axis=-1) for name in finished[0]}
    shown = pictured[pictured < len(rows["label"])]
    found = _pictures(shown, kept, data.classes) if len(shown) else None
    return Tradeoff(np.asarray(alphas, float), np.asarray(mix_alphas, float), rows, settings, found)


def attack_count(images: int, batch_size: int, mix_alphas: Sequence[float]) -> int:
    """Return the number of attacks on batches in a run: STD, ROB, and MIX at each alpha between 0 and 1."""
    return -(-images // batch_size) * (2 + sum(alpha not in (0, 1) for alpha in mix_alphas))


def _measure(
    pair: Pair,
    batch: Batch,
    attack: PGD,
    alphas: Sequence[float],
    mix_alphas: Sequence[float],
    keep: Tensor,
    progress: CountCallback,
) -> tuple[dict[str, Tensor], KeptImages]:
    """Return the columns of a `Tradeoff` for one batch, and the images at the positions `keep`."""
    images, labels = batch.images, batch.labels
    columns, versions = {"index": batch.index, "label": labels}, {"clean": images}
    for name, model in zip(("std", "rob"), pair, strict=True):
        versions[name] = attack(model, images, labels)
        progress(1)
    kept = KeptImages({name: version[keep.to(labels.device)].cpu() for name, version in versions.items()}, {})
    for name, version in versions.items():
        g, h = (fp32_logits(model, version).log_softmax(1) for model in pair)
        columns |= _transferred(name, g, h, labels, alphas)
        for letter, shares in (("g", g), ("h", h)):
            kept.probabilities[f"{name}_{letter}"] = shares.exp()[keep.to(labels.device)].cpu()
    # At alpha 0 and 1 the mixture is g or h, which have been attacked end to end already.
    known = {0: columns["clean_g"] & columns["std_g"], 1: columns["clean_h"] & columns["rob_h"]}
    mix = []
    for alpha in mix_alphas:
        if alpha in known:
            mix.append(known[int(alpha)])
        else:
            mix.append(_robust(MixedClassifier(*pair, alpha), images, labels, attack))
            progress(1)
    columns["mix"] = torch.stack(mix) if mix else labels.new_empty((0, len(labels)), dtype=torch.bool)
    return columns, kept


def _pictures(rows: Tensor, kept: list[KeptImages], classes: tuple[str, ...]) -> Pictures:
    """Return the pictures at some positions, from the images that were kept of each batch."""

    def joined(tables: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}

    found = Pictures.made(rows, joined([part.versions for part in kept]), classes)
    shares = joined([part.probabilities for part in kept])
    return replace(found, probabilities={name: each.numpy() for name, each in shares.items()})


def _transferred(name: str, g: Tensor, h: Tensor, labels: Tensor, alphas: Sequence[float]) -> dict[str, Tensor]:
    """Return which images g, h and the mixture at every alpha classify correctly, and the confidence gaps of g and h.

    Args:
        name: beginning of the names of the columns: clean, std or rob.
        g, h: logarithms of the probabilities.
    """
    columns = {name: torch.stack([mix_log_probabilities(g, h, alpha).argmax(1) == labels for alpha in alphas])}
    for letter, log_probabilities in (("g", g), ("h", h)):
        columns[f"{name}_{letter}"] = log_probabilities.argmax(1) == labels
        columns[f"{name}_{letter}_gap"] = confidence_gap(log_probabilities.exp())
    return columns


def _robust(mixed: MixedClassifier, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    """Return which images are classified correctly both before and after the attack."""
    robust = fp32_logits(mixed, images).argmax(1) == labels
    if robust.any():
        # The attack may stop at images that are fooled, because it is not transferred to another model.
        adversarial = replace(attack, stop_when_fooled=True)(mixed, images[robust], labels[robust])
        robust[robust.clone()] = fp32_logits(mixed, adversarial).argmax(1) == labels[robust]
    return robust
