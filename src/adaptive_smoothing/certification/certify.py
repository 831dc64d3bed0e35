"""`certify`: a whole data set, shard by shard, journalled as an evaluation is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.certifiers import Certifier, make_certifier
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.progress import RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun

# More than float64 is off by where a radius is divided by a root.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class CertificationRun(ShardedRun):
    """Everything that decides what a certification computes, and how it is spread over the machine."""

    SHARD: ClassVar[dict[str, int]] = {"cuda": 500, "cpu": 4}

    parts: CertificationTarget
    method: Certifier
    norm: str = "L2"

    def run(self, devices: Sequence[str] = (), watch: RunProgress | None = None) -> Certificates:
        self.journal.bind(self.binding)
        columns = self.columns(watch or ignore_progress, devices)
        facts = {**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]}
        return Certificates(columns, facts)

    @property
    def settings(self) -> dict[str, Any]:
        facts = {"norm": self.norm, "alpha": self.parts.alpha, **self.method.facts}
        # Another kind of device draws other noise.
        return describe({**facts, "device": self.device.type})

    def shard(self, name: str, rows: slice, watch: ShardProgress) -> Columns:
        saved = self.journal.read(name)
        if saved is not None:
            return saved
        batch = self.batch(rows)
        found = self.method.certify(
            batch.images, batch.index, lambda share: watch(self.method.name, share, len(batch.labels), 0)
        )
        h = torch.from_numpy(found["probabilities"]).to(batch.images.device)
        check_labels(batch.labels, batch.images, h.shape[1])
        mixture, standard = (said.cpu().numpy() for said in self.parts.say(batch.images, h))
        certified = found["radius"] > 0
        columns = {
            "index": batch.index.cpu().numpy(),
            "label": batch.labels.cpu().numpy(),
            # Where there is a certificate it says what the mixture says; elsewhere this is what it seems to say.
            "prediction": np.where(certified, found["robust_class"], mixture.argmax(1)),
            "certified": certified,
            **found,
            "standard_probabilities": standard,
            **{name: self._in_norm(found[name], batch.images[0].numel()) for name in ("radius", "estimate")},
        }
        self.journal.write(name, columns)
        return columns

    def _in_norm(self, radius: np.ndarray, pixels: int) -> np.ndarray:
        """The cube inside an L2 ball of so many dimensions has sides that are shorter by their root."""
        if self.norm == self.method.norm:
            return radius
        return radius / math.sqrt(pixels) * (1 - ROUNDING)

    def count_correct(self, columns: Columns) -> int:
        return int((columns["certified"] & (columns["prediction"] == columns["label"])).sum())


def certify(
    model: nn.Module,
    data: ImageData,
    *,
    method: str | None = None,
    norm: str | None = None,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    watch: RunProgress | None = None,
    shard_size: int | None = None,
    **options: Any,
) -> Certificates:
    """How far each image of `data` can be moved, in `norm`, without another answer of `model`.

    `model` is a classifier h or a `MixedClassifier` with it, whose g may be anything. `method` follows from h:
    "smoothing" for a `SmoothedClassifier` (see `Smoothing` and `Sampler` for options), "lipschitz" for a network with
    a proven constant (see `Lipschitz`); "local" is an estimate for any network and certifies nothing (see
    `LocalEstimate`). What is proven in L2 is turned into Linf if that is the `norm`. See `evaluate` for `journal`,
    `devices` and the others.
    """
    check_data(data)
    check_eval(model)
    parts = CertificationTarget.of(model)
    how = make_certifier(parts, method, norm, options, pixels=math.prod(data.images.shape[1:]))
    with journal_at(journal, overwrite, devices) as kept:
        run = CertificationRun(
            model=model,
            data=data,
            device=device_of(model, data, device),
            journal=kept,
            shard_size=shard_size,
            parts=parts,
            method=how,
            norm=norm or how.norm,
        )
        return run.run(devices, watch)
