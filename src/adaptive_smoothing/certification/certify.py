"""`certify`: certify a data set, shard by shard, with a journal from which an interrupted run continues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.certification import rounding
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.certifiers import Certifier, choose_options, make_certifier
from adaptive_smoothing.certification.options import CertifyOptions, SmoothingOptions, method_of
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.progress import RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun


@dataclass(frozen=True, kw_only=True)
class CertificationRun(ShardedRun):
    """A certification of a data set."""

    SHARD: ClassVar[dict[str, int]] = {"cuda": 500, "cpu": 4}

    target: CertificationTarget
    certifier: Certifier
    norm: str = "L2"

    def run(self, devices: Sequence[str] = (), progress: RunProgress | None = None) -> Certificates:
        self.journal.bind(self.binding)
        columns = self.columns(progress or ignore_progress, devices)
        facts = {**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]}
        return Certificates(columns, facts)

    @property
    def settings(self) -> dict[str, Any]:
        facts = {"norm": self.norm, "alpha": self.target.alpha, **self.certifier.facts}
        if self.norm != self.certifier.norm:
            facts["pixels"] = self._pixels
        # The type of device determines the noise.
        return describe({**facts, "device": self.device.type})

    @property
    def _pixels(self) -> int:
        return math.prod(self.data.images.shape[1:])

    def shard(self, name: str, rows: slice, watch: ShardProgress) -> Columns:
        saved = self.journal.read(name)
        if saved is not None:
            return saved
        batch = self.batch(rows)
        found = self.certifier.certify(
            batch.images, batch.index, lambda share: watch(self.certifier.name, share, len(batch.labels), 0)
        )
        h = torch.from_numpy(found["probabilities"]).to(batch.images.device)
        check_labels(batch.labels, batch.images, h.shape[1])
        mixture, standard = (each.cpu().numpy() for each in self.target.probabilities(batch.images, h))
        certified = found["radius"] > 0
        columns = {
            "index": batch.index.cpu().numpy(),
            "label": batch.labels.cpu().numpy(),
            # Without a certificate, the prediction is that of the mixture with the sampled means in place of h.
            "prediction": np.where(certified, found["robust_class"], mixture.argmax(1)),
            "certified": certified,
            **found,
            "standard_probabilities": standard,
            **{name: self._in_norm(found[name]) for name in ("radius", "estimate")},
        }
        self.journal.write(name, columns)
        return columns

    def _in_norm(self, radius: np.ndarray) -> np.ndarray:
        """Return the Linf radius of the cube inside an L2 ball, if the norms differ."""
        if self.norm == self.certifier.norm:
            return radius
        return radius / math.sqrt(self._pixels) * (1 - rounding.L2_TO_LINF)

    def count_correct(self, columns: Columns) -> int:
        return int((columns["certified"] & (columns["prediction"] == columns["label"])).sum())


def certify(
    model: nn.Module,
    data: ImageData,
    *,
    method: str | None = None,
    norm: str | None = None,
    samples: int | None = None,
    failure_probability: float | None = None,
    radius: float | None = None,
    options: CertifyOptions | None = None,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: RunProgress | None = None,
) -> Certificates:
    """Certify how far each image of `data` can be moved without changing the prediction of `model`.

    Args:
        model: a classifier h, or a `MixedClassifier` of any g with it.
        method: "smoothing" for a `SmoothedClassifier` h, "lipschitz" for an h with a proven Lipschitz constant, "local"
            for an estimate, which certifies nothing. The default follows from the options, or from h.
        norm: norm of the radii: L2, or Linf, which the cube inside the L2 ball gives; a local estimate has Linf.
        samples: of `SmoothingOptions`, as are `failure_probability` and `radius`; shorthands that override `options`.
        options: `SmoothingOptions`, `LipschitzOptions` or `LocalOptions`.
        device: device of the computation; default that of the model.
        devices: several devices; each gets a process.
        journal: folder from which the same call continues after an interruption.
        overwrite: replace the journal of a different run.
        progress: called with the progress of the run.
    """
    check_data(data)
    check_eval(model)
    target = CertificationTarget.of(model)
    chosen = _with_shorthands(choose_options(target.robust, method, options), samples, failure_probability, radius)
    certifier = make_certifier(target, chosen, norm, pixels=math.prod(data.images.shape[1:]))
    with journal_at(journal, overwrite, devices) as kept:
        run = CertificationRun(
            model=model,
            data=data,
            device=device_of(model, data, device),
            journal=kept,
            shard_size=chosen.shard_size,
            target=target,
            certifier=certifier,
            norm=norm or certifier.norm,
        )
        return run.run(devices, progress)


def _with_shorthands(
    options: CertifyOptions, samples: int | None, failure_probability: float | None, radius: float | None
) -> CertifyOptions:
    """Return the options with the shorthands of `certify` that were given."""
    if isinstance(options, SmoothingOptions):
        return replace(
            options,
            samples=options.samples if samples is None else samples,
            failure_probability=options.failure_probability if failure_probability is None else failure_probability,
            radius=options.radius if radius is None else radius,
        )
    given = {"samples": samples, "failure_probability": failure_probability, "radius": radius}
    for name in (name for name, value in given.items() if value is not None):
        raise TypeError(f"{name} applies to the method 'smoothing' only, got the method {method_of(options)!r}")
    return options
