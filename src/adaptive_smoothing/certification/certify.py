"""`certify`: certify a data set shard by shard. An interrupted run continues from its journal."""

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
from adaptive_smoothing.certification.options import (
    METHODS,
    CertifyOptions,
    LipschitzOptions,
    LocalOptions,
    SmoothingOptions,
    make_options,
)
from adaptive_smoothing.certification.smoothing import Smoothing
from adaptive_smoothing.certification.target import CertificationTarget, NotCertifiableError
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.models.fit import warn_if_unfit
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.runs.journal import Columns, journal_at
from adaptive_smoothing.runs.progress import RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.runs.sharded import ShardedRun
from adaptive_smoothing.settings.checks import check_options
from adaptive_smoothing.threat import NORMS

# A method of certification. `certify(images, index, progress)` returns columns with one entry per image:
# - robust_class: the class that h predicts
# - lower, upper: bounds on the probability that h gives to this class, and to any other class
# - radius: certified radius in the norm `norm`, 0 where nothing is certified
# - estimate: radius that is not certified, for example from sampled means
# - samples: passes of h
# - probabilities: those of h, all classes
# `settings` are those of the method as plain data for result.json.
Certifier = Smoothing | Lipschitz | LocalEstimate


@memory_given_back()
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
        model: a classifier h, or a `MixedClassifier` of h and any g.
        method: "smoothing" for a `SmoothedClassifier` h, "lipschitz" for an h with a proven Lipschitz constant, "local"
            for an estimate, which certifies nothing. The default follows from the options, or from h.
        norm: shorthand for the option `norm` of every method.
        samples: shorthand for the option of `SmoothingOptions`; `failure_probability` and `radius` likewise.
        options: `SmoothingOptions`, `LipschitzOptions` or `LocalOptions`; shorthands override them.
        device: default: the device of the model.
        devices: several devices; each gets a process.
        journal: folder in which finished shards are stored; the same call continues from there.
        overwrite: replace the journal of a different call.
        progress: called whenever some images are done.

    Examples:
        >>> smooth = ads.SmoothedClassifier(h, sigma=0.25, hard=True)
        >>> found = ads.certify(ads.MixedClassifier(ads.Hardmax(g), smooth, alpha=0.8), data, samples=100)
        >>> found.accuracy(0.1) <= found.clean  # certified at an L2 radius of 0.1
        True
    """
    check_data(data)
    check_eval(model)
    warn_if_unfit(model, data)
    target = CertificationTarget.of(model)
    shorthands = {"norm": norm, "samples": samples, "failure_probability": failure_probability, "radius": radius}
    chosen = _choose_options(target.robust, method, options, shorthands)
    certifier = make_certifier(target, chosen, pixels=math.prod(data.images.shape[1:]))
    with journal_at(journal, overwrite, devices) as kept:
        run = CertificationRun(
            model=model,
            data=data,
            device=device_of(model, data, device),
            journal=kept,
            shard_size=chosen.shard_size,
            target=target,
            certifier=certifier,
            norm=chosen.norm or certifier.norm,
        )
        return run.run(devices, progress or ignore_progress)


def _choose_options(
    robust: nn.Module, method: str | None, options: CertifyOptions | None, shorthands: dict[str, Any]
) -> CertifyOptions:
    """Return the given options, or the defaults of the method, with the shorthands that are not None."""
    if options is None:
        options = make_options(method or _natural_method(robust))
    elif method is not None and not isinstance(options, expected := type(make_options(method))):
        hint = "pass options of that method, or leave the method out"
        raise TypeError(f"expected {expected.__name__} for the method {method!r}, got {type(options).__name__}: {hint}")
    check_options(options, *METHODS.values())
    given = {name: value for name, value in shorthands.items() if value is not None}
    for name in given:
        if not hasattr(options, name):
            used = type(options).__name__
            raise TypeError(f"{name} applies to the method 'smoothing' only, got {used}: leave it out")
    return replace(options, **given)


def _natural_method(robust: nn.Module) -> str:
    """Return the method that certifies this h."""
    if isinstance(robust, SmoothedClassifier):
        return "smoothing"
    if isinstance(robust, LipschitzLogits):
        return "lipschitz"
    expected = "a smoothed classifier or a network with a proven Lipschitz constant as h"
    hint = "smooth it with ads.SmoothedClassifier(h, sigma), or estimate with method='local'"
    raise NotCertifiableError(f"expected {expected}, got a {type(robust).__name__}: {hint}")


def make_certifier(target: CertificationTarget, options: CertifyOptions, *, pixels: int = 1) -> Certifier:
    """Return the certifier for a target, or raise `NotCertifiableError` if the method does not cover its h.

    Args:
        pixels: numbers in an image, which convert a wanted Linf radius to L2.
    """
    if isinstance(options, SmoothingOptions):
        return _smoothing(target, options, pixels)
    if isinstance(options, LipschitzOptions):
        return _lipschitz(target, options)
    return _local(target, options)


def _smoothing(target: CertificationTarget, options: SmoothingOptions, pixels: int) -> Smoothing:
    h = target.robust
    if not isinstance(h, SmoothedClassifier):
        hint = "ads.SmoothedClassifier(h, sigma=0.5)"
        raise NotCertifiableError(f"expected a smoothed classifier as h, got a {type(h).__name__}: {hint}")
    if target.scale != 1:
        raise NotCertifiableError(
            f"expected unscaled logits of h, got them times {target.scale:g}: the theorem is about a mean of "
            "probabilities, not about its power; scale the logits of the base inside the SmoothedClassifier"
        )
    if options.norm == "Linf" and options.radius is not None:
        options = replace(options, radius=options.radius * math.sqrt(pixels) * (1 + rounding.LINF_TO_L2))
    return Smoothing(robust=h, alpha=target.alpha, options=options)


def _lipschitz(target: CertificationTarget, options: LipschitzOptions) -> Lipschitz:
    h = target.robust
    if not isinstance(h, LipschitzLogits):
        raise NotCertifiableError(
            f"expected a network that proves its Lipschitz constant as h, got a {type(h).__name__}: it needs a "
            "method pairwise_lipschitz, as the architecture lipschitz_net has; method='local' gives an estimate"
        )
    return Lipschitz(robust=h, alpha=target.alpha, scale=target.scale, theorem=options.theorem)


def _local(target: CertificationTarget, options: LocalOptions) -> LocalEstimate:
    h = target.robust
    if isinstance(h, Hardmax) or (isinstance(h, SmoothedClassifier) and h.hard):
        found = "a hardmax or hard votes, which have none"
        hint = "leave the hardmax out, or smooth with soft votes, hard=False"
        raise NotCertifiableError(f"expected an h with a gradient, got {found}: {hint}")
    return LocalEstimate(
        robust=h,
        threat=NORMS[options.norm or "Linf"](options.eps),
        alpha=target.alpha,
        scale=target.scale,
        steps=options.steps,
        batch_size=options.batch_size,
    )


@dataclass(frozen=True, kw_only=True)
class CertificationRun(ShardedRun):
    """A certification of a data set, with radii in `norm`."""

    SHARD: ClassVar[dict[str, int]] = {"cuda": 500, "cpu": 4}

    target: CertificationTarget
    certifier: Certifier
    norm: str

    def run(self, devices: Sequence[str] = (), progress: RunProgress = ignore_progress) -> Certificates:
        self.journal.bind(self.binding)
        columns = self.columns(progress, devices)
        return Certificates(columns, {**self.binding, "data": self.data.name, "fingerprint": self.binding["data"]})

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"norm": self.norm, "alpha": self.target.alpha, **self.certifier.settings}
        if self.norm != self.certifier.norm:
            settings["pixels"] = self._pixels
        # The type of device determines the noise.
        return describe({**settings, "device": self.device.type})

    @property
    def _pixels(self) -> int:
        return math.prod(self.data.images.shape[1:])

    def shard(self, name: str, rows: slice, progress: ShardProgress) -> Columns:
        if (saved := self.journal.read(name)) is not None:
            return saved
        batch = self.batch(rows)
        found = self.certifier.certify(
            batch.images, batch.index, lambda share: progress(self.certifier.name, share, len(batch.labels), 0)
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
            "radius": self._in_norm(found["radius"]),
            "estimate": self._in_norm(found["estimate"]),
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
