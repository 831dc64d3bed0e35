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
from adaptive_smoothing.certification.lipschitz import Lipschitz, LipschitzLogits
from adaptive_smoothing.certification.local_lipschitz import LocalEstimate
from adaptive_smoothing.certification.options import CertifyOptions, LipschitzOptions, SmoothingOptions, make_options
from adaptive_smoothing.certification.smoothing import Smoothing
from adaptive_smoothing.certification.target import CertificationTarget, NotCertifiableError
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.progress import RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun
from adaptive_smoothing.threat import NORMS

# A method of certification. `certify(images, index, progress)` returns columns with one entry per image: robust_class
# (that h predicts), lower (bound on its probability), upper (bound on the probability of any other class), radius (in
# `norm`), estimate, samples, probabilities. `facts` are the settings of the method, as plain data for result.json.
Certifier = Smoothing | Lipschitz | LocalEstimate


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
        device: default that of the model.
        devices: several devices; each gets a process.
        journal: folder from which the same call continues after an interruption; `overwrite` replaces a different one.
    """
    check_data(data)
    check_eval(model)
    target = CertificationTarget.of(model)
    shorthands = {"samples": samples, "failure_probability": failure_probability, "radius": radius}
    chosen = _choose_options(target.robust, method, options, shorthands)
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


def _choose_options(
    robust: nn.Module, method: str | None, options: CertifyOptions | None, shorthands: dict[str, Any]
) -> CertifyOptions:
    """Return the given options, or the defaults of the method, with the shorthands that are not None."""
    if options is None:
        options = make_options(method or _natural_method(robust))
    elif method is not None and not isinstance(options, expected := type(make_options(method))):
        raise TypeError(
            f"expected {expected.__name__} for the method {method!r}, got {type(options).__name__}: pass options of "
            "that method, or leave the method out"
        )
    given = {name: value for name, value in shorthands.items() if value is not None}
    if given and not isinstance(options, SmoothingOptions):
        name, used = next(iter(given)), type(options).__name__
        raise TypeError(f"{name} applies to the method 'smoothing' only, got {used}: leave it out")
    return replace(options, **given)


def _natural_method(robust: nn.Module) -> str:
    """Return the method that certifies this h."""
    if isinstance(robust, SmoothedClassifier):
        return "smoothing"
    if isinstance(robust, LipschitzLogits):
        return "lipschitz"
    raise NotCertifiableError(
        f"expected a smoothed classifier or a network with a proven Lipschitz constant as h, got a "
        f"{type(robust).__name__}: smooth it with ads.SmoothedClassifier(h, sigma), or estimate with method='local'"
    )


def make_certifier(
    target: CertificationTarget, options: CertifyOptions, norm: str | None = None, *, pixels: int = 1
) -> Certifier:
    """Return the certifier for a target, or raise `NotCertifiableError` if the method does not cover its h.

    Args:
        norm: norm of the radii; default L2, or Linf for a local estimate.
        pixels: dimension of an image, which converts a wanted Linf radius to L2.
    """
    if norm is not None and norm not in NORMS:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {norm!r}")
    h, alpha, scale = target.robust, target.alpha, target.scale
    if isinstance(options, SmoothingOptions):
        if not isinstance(h, SmoothedClassifier):
            raise NotCertifiableError(
                f"expected a smoothed classifier as h, got a {type(h).__name__}: ads.SmoothedClassifier(h, sigma=0.5)"
            )
        if scale != 1:
            raise NotCertifiableError(
                f"expected unscaled logits of h, got them times {scale:g}: the theorem is about a mean of "
                "probabilities, not about its power; scale the logits of the base inside the SmoothedClassifier"
            )
        if norm == "Linf" and options.radius is not None:
            options = replace(options, radius=options.radius * math.sqrt(pixels) * (1 + rounding.LINF_TO_L2))
        return Smoothing(robust=h, alpha=alpha, options=options)
    if isinstance(options, LipschitzOptions):
        if not isinstance(h, LipschitzLogits):
            raise NotCertifiableError(
                f"expected a network that proves its Lipschitz constant as h, got a {type(h).__name__}: it needs a "
                "method pairwise_lipschitz, as the architecture lipschitz_net has; method='local' gives an estimate"
            )
        return Lipschitz(robust=h, alpha=alpha, scale=scale, theorem=options.theorem)
    if isinstance(h, Hardmax) or (isinstance(h, SmoothedClassifier) and h.hard):
        raise NotCertifiableError(
            "expected an h with a gradient, got hard votes, which have none: estimate with soft votes, hard=False"
        )
    threat, steps, batch_size = NORMS[norm or "Linf"](options.eps), options.steps, options.batch_size
    return LocalEstimate(robust=h, threat=threat, alpha=alpha, scale=scale, steps=steps, batch_size=batch_size)


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
        return Certificates(columns, {**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]})

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
        if (saved := self.journal.read(name)) is not None:
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
