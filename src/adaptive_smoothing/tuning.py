"""The dial by its target: the alpha, or the shift of a learned alpha, that gives a wanted accuracy.

The mixture of an image is linear in alpha, so it is classified right on one interval of alphas; a learned alpha rises
with its shift, so that interval is one of shifts, too. The ends of those intervals give the clean accuracy at every
setting of the dial exactly, from one pass over the validation images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.autoattack import FastAttack
from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.verdict import verdict_logits
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import Attack, check_data
from adaptive_smoothing.evaluation.judging import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier, Mixture
from adaptive_smoothing.mixing.mixer import Advice, Evidence, Mixer
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.results import read_rows, write_rows
from adaptive_smoothing.threat import Threat

# A stretch of settings narrower than this share of them may be missed by a mixture that computes in float32.
NARROW = 1e-6
# This far from the middle a sigmoid is within 1e-5 of its ends.
SATURATED = 12.0
# Attacks on the data that a search for a robust accuracy may take.
EVALUATIONS = 7
BATCH = 500


@dataclass(frozen=True)
class CleanAccuracy:
    """Clean accuracy as a function of a dial: each image is right for settings strictly between `low` and `high`.

    The dial is alpha, or the shift of a learned alpha. `span` are the first and the last setting worth asking for.
    """

    low: np.ndarray
    high: np.ndarray
    span: tuple[float, float] = (0.0, 1.0)
    dial: str = "alpha"

    def __call__(self, setting: float) -> float:
        return float(((self.low < setting) & (setting < self.high)).mean())

    def save(self, path: Path) -> None:
        """From this file the setting for any clean accuracy can be read without the models."""
        columns = {"low": self.low, "high": self.high, "span": np.array(self.span), "dial": np.array(self.dial)}
        write_rows(path, columns)

    @classmethod
    def load(cls, path: Path) -> CleanAccuracy:
        columns = read_rows(path)
        first, last = columns.get("span", np.array(cls.span)).tolist()  # early files are about alpha
        return cls(columns["low"], columns["high"], (first, last), str(columns.get("dial", cls.dial)))

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Settings, one inside each stretch of constant accuracy that float32 can hit, and the accuracy there."""
        somewhere = self.low < self.high
        low, high = np.sort(self.low[somewhere]), np.sort(self.high[somewhere])
        ends = np.unique(np.concatenate([low, high, self.span]).clip(*self.span))
        middles = (ends[:-1] + ends[1:]) / 2
        wide = np.diff(ends) > NARROW * np.maximum(1, np.abs(middles))
        settings = np.concatenate([self.span[:1], middles[wide], self.span[1:]])
        count = np.searchsorted(low, settings, "left") - np.searchsorted(high, settings, "right")
        return settings, count / len(self.low)

    def reaching(self, target: float) -> np.ndarray:
        """The settings of `steps` that have the wanted clean accuracy."""
        check_share(target, "clean accuracy")
        settings, accuracy = self.steps()
        return settings[accuracy >= target]

    def largest(self, target: float) -> float:
        """The most robust setting that still has the wanted clean accuracy: the largest one that reaches it."""
        enough = self.reaching(target)
        if not len(enough):
            settings, accuracy = self.steps()
            best = int(accuracy.argmax())
            offer = math.floor(1000 * accuracy[best]) / 1000  # down: what is offered has to work when it is asked for
            raise ValueError(
                f"expected a clean accuracy this pair can reach, got {target:.4g}: the best on {len(self.low):,} "
                f"images is {offer:.3f}, at {self.dial} {settings[best]:.3f}; ask for at most that"
            )
        return float(enough[-1])

    def largest_alpha(self, target: float) -> float:
        """`largest`, where the dial is known to be alpha."""
        return self.largest(target)


def check_share(target: float, name: str) -> None:
    if not 0 < target <= 1:
        raise ValueError(f"expected a {name} in (0, 1], such as 0.9, got {target}")


def right_interval(g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the open interval of alphas at which (1 - alpha) g + alpha h is largest at its label.

    Takes probabilities [N, C]. An image that is right at no alpha gets low >= high, or NaN if it has a NaN; one that is
    right up to an end gets an interval that reaches beyond it.
    """
    lead_g = g.gather(1, labels[:, None]) - g
    lead_h = h.gather(1, labels[:, None]) - h
    ahead_g, ahead_h = lead_g > 0, lead_h > 0
    crossing = lead_g / (lead_g - lead_h)
    high = torch.where(ahead_g & ~ahead_h, crossing, torch.inf)
    low = torch.where(~ahead_g & ahead_h, crossing, -torch.inf)
    low = torch.where(~ahead_g & ~ahead_h, torch.inf, low)
    own = torch.zeros_like(g, dtype=torch.bool).scatter(1, labels[:, None], True)
    return low.masked_fill(own, -torch.inf).amax(1), high.masked_fill(own, torch.inf).amin(1)


def shift_accuracy(mixture: Mixture, score: Tensor, labels: Tensor, mixed: MixedClassifier) -> CleanAccuracy:
    """Clean accuracy of `mixed` at every alpha_shift, from what it mixed and the score that its `Mixer` gave."""
    return _of_shifts(_shift_ends(mixture.g, mixture.h, score, labels, mixed).cpu().numpy())


def clean_accuracy(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    *,
    standard_scale: float | Tensor = 1.0,
    robust_scale: float | Tensor = 1.0,
    batch_size: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> CleanAccuracy:
    """Clean accuracy of the mixture of two classifiers at every alpha, measured on `data`.

    `progress` is called with the number of images of each finished batch.
    """
    bases = ((standard, standard_scale), (robust, robust_scale))

    def ends(batch: Batch) -> Tensor:
        g, h = ((verdict_logits(model, batch.images).double() * scale).softmax(1) for model, scale in bases)
        return torch.stack(right_interval(g, h, batch.labels))

    return CleanAccuracy(*_per_image(ends, robust, data, batch_size, progress))


def dial_accuracy(mixed: MixedClassifier, data: ImageData, **options: Any) -> CleanAccuracy:
    """Clean accuracy of a mixture at every setting of its dial: alpha, or with a `Mixer` alpha_shift.

    Its other numbers stay as they are, but for the range of a fixed alpha, which becomes all of [0, 1]. The options are
    those of `clean_accuracy`: batch_size, progress.
    """
    _check_dial(mixed)
    if not isinstance(mixed.alpha, Mixer):
        options |= {"standard_scale": mixed.standard_scale, "robust_scale": mixed.robust_scale}
        return clean_accuracy(mixed.standard, mixed.robust, data, **options)

    def ends(batch: Batch) -> Tensor:
        evidence, advice = _what_was_mixed(mixed, batch.images)
        g, h = mixed.standard_scale * evidence.g, mixed.robust_scale * advice.h
        return _shift_ends(g, h, advice.score, batch.labels, mixed)

    return _of_shifts(_per_image(ends, mixed, data, **options))


def turned(mixed: MixedClassifier, setting: float) -> MixedClassifier:
    """The view of a mixture with its dial at `setting`."""
    if isinstance(mixed.alpha, Mixer):
        return mixed.with_dial(mixed.alpha_scale, setting)
    return mixed.with_alpha_range(0, 1).with_alpha(setting)


def tune(
    mixed: MixedClassifier,
    data: ImageData,
    *,
    clean_accuracy: float | None = None,
    robust_accuracy: float | None = None,
    threat: Threat | None = None,
    attack: Cascade | Attack | None = None,
) -> MixedClassifier:
    """The view of `mixed` whose dial gives a wanted accuracy on `data`: alpha, or with a `Mixer` alpha_shift.

    `clean_accuracy`: the most robust setting that has it, which one pass tells exactly. `robust_accuracy`: the most
    accurate setting found to keep it against `threat` under the preset `fast`, or under `attack`. That takes seven
    attacks on all of `data`, and rests on robustness that rises with the dial, as it does up to the noise of attacks.

    Give it validation images: what is tuned on the test set cannot be reported on it. To tune with another scale or
    range of a learned alpha, ask `with_dial` and `with_alpha_range` first.
    """
    wishes = {"clean_accuracy": clean_accuracy, "robust_accuracy": robust_accuracy, "threat": threat, "attack": attack}
    given = [name for name, wish in wishes.items() if wish is not None]
    if given not in (["clean_accuracy"], ["robust_accuracy", "threat"], ["robust_accuracy", "attack"]):
        raise ValueError(
            "expected a clean_accuracy, or a robust_accuracy with a threat or an attack, got "
            f"{' and '.join(given) or 'none of them'}: one dial serves one target; "
            "tune(mixed, data, clean_accuracy=0.9) or tune(mixed, data, robust_accuracy=0.4, threat=ads.Linf(8 / 255))"
        )
    if clean_accuracy is not None:
        return turned(mixed, dial_accuracy(mixed, data).largest(clean_accuracy))
    assert robust_accuracy is not None
    check_share(robust_accuracy, "robust accuracy")
    if threat is not None:
        attack = replace(FastAttack(threat), audit=())
    return _smallest_robust(mixed, data, robust_accuracy, attack)


def _smallest_robust(
    mixed: MixedClassifier, data: ImageData, target: float, attack: Cascade | Attack | None
) -> MixedClassifier:
    """By bisection over the steps of clean accuracy: between two of them there is nothing to win."""
    settings, _ = dial_accuracy(mixed, data).steps()
    options = {"with_alarms": False} if isinstance(attack, Cascade) else {}

    def robust(number: int) -> float:
        return evaluate(turned(mixed, settings[number].item()), data, attack, **options).robust

    failing, enough = -1, len(settings) - 1
    if (best := robust(enough)) < target:
        raise ValueError(
            f"expected a robust accuracy this mixture can reach, got {target:.4g}: at its most robust end it has "
            f"{best:.4g} on {len(data):,} images; ask for at most that, or mix with another robust classifier"
        )
    for _ in range(EVALUATIONS - 1):
        if enough - failing == 1:
            break
        middle = (failing + enough) // 2
        failing, enough = (failing, middle) if robust(middle) >= target else (middle, enough)
    return turned(mixed, settings[enough].item())


def _check_dial(mixed: MixedClassifier) -> None:
    if not isinstance(mixed, MixedClassifier):
        raise TypeError(f"expected a mixture to tune, got {type(mixed).__name__}: ads.MixedClassifier(g, h, 0.5)")
    if not isinstance(mixed.alpha, nn.Module):
        return
    if not isinstance(mixed.alpha, Mixer):
        raise TypeError(
            f"expected an alpha with a dial, a number or a Mixer such as ads.MixingNetwork, got the module "
            f"{type(mixed.alpha).__name__}: nothing says how to turn it; tune mixed.with_alpha(0.5), or make it a Mixer"
        )
    check_eval(mixed)


def _shift_ends(g: Tensor, h: Tensor, score: Tensor, labels: Tensor, mixed: MixedClassifier) -> Tensor:
    """For each image the shifts between which it is right, and the one that puts its alpha into the middle: [3, N]."""
    low, high = mixed.alpha_range.tolist()
    if low == high:
        raise ValueError(
            f"expected an alpha_range of some width, got ({low:g}, {high:g}), where no shift changes alpha: "
            "tune mixed.with_alpha_range(0, 1)"
        )
    alphas = torch.stack(right_interval(g.double().softmax(1), h.double().softmax(1), labels))
    middle = -mixed.alpha_scale.double() * score.double()
    # Beyond the range an alpha is reached at no shift, so that its end lies at infinity.
    return torch.cat([torch.logit(((alphas - low) / (high - low)).clamp(0, 1)) + middle, middle[None]])


def _of_shifts(ends: np.ndarray) -> CleanAccuracy:
    low, high, middle = ends
    return CleanAccuracy(low, high, (middle.min().item() - SATURATED, middle.max().item() + SATURATED), "shift")


def _what_was_mixed(mixed: MixedClassifier, images: Tensor) -> tuple[Evidence, Advice]:
    """What the `Mixer` heard and said in the very pass that a verdict is read from."""
    heard: list[tuple[Evidence, Advice]] = []
    assert isinstance(mixed.alpha, Mixer)
    handle = mixed.alpha.register_forward_hook(lambda mixer, inputs, advice: heard.append((inputs[0], advice)))
    try:
        verdict_logits(mixed, images)
    finally:
        handle.remove()
    return heard[0]


def _per_image(
    function: Callable[[Batch], Tensor],
    model: nn.Module,
    data: ImageData,
    batch_size: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """What a function says of each batch, in columns, for all images."""
    check_data(data)
    device = next(iter(model.parameters()), data.images).device
    answers = []
    for batch in batches(data, batch_size, device=device):
        answers.append(function(batch).cpu())
        if progress is not None:
            progress(len(batch.labels))
    return torch.cat(answers, dim=1).numpy()
