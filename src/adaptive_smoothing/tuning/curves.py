"""Clean accuracy of a mixture as a function of its setting: alpha, or the shift of a learned alpha.

An image is classified correctly on one interval of settings. One pass over the images finds these intervals, so the
curve is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.operating_point import correct_alphas, correct_interval, mixer_calls, shifts_of
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.models.fit import warn_if_unfit
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.results import read_rows, write_rows
from adaptive_smoothing.runs.progress import CountCallback, ignore_progress
from adaptive_smoothing.settings.checks import check_number

# In a run folder: the settings between which each validation image is classified correctly. The setting for any other
# clean accuracy can be computed from this file.
VALIDATION = "validation.npz"
# A mixture in float32 may miss an interval of settings that is narrower than this, relative to its position.
NARROW = 1e-6
# This far from its middle a sigmoid is within 1e-5 of its ends.
SATURATED = 12.0
# Images per batch, and images whose outputs are checked before the others.
BATCH, CHECKED = 500, 8


@dataclass(frozen=True)
class CleanAccuracyCurve:
    """Clean accuracy at every alpha or shift (`parameter`): image i is correct strictly between low[i] and high[i]."""

    low: np.ndarray
    high: np.ndarray
    limits: tuple[float, float] = (0.0, 1.0)  # the first and the last setting to consider
    parameter: str = "alpha"

    def __call__(self, setting: float) -> float:
        return float(((self.low < setting) & (setting < self.high)).mean())

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return one setting in each interval of constant accuracy that float32 can resolve, and the accuracy there."""
        nonempty = self.low < self.high
        low, high = np.sort(self.low[nonempty]), np.sort(self.high[nonempty])
        ends = np.unique(np.concatenate([low, high, self.limits]).clip(*self.limits))
        middles = (ends[:-1] + ends[1:]) / 2
        wide = np.diff(ends) > NARROW * np.maximum(1, np.abs(middles))
        settings = np.concatenate([self.limits[:1], middles[wide], self.limits[1:]])
        count = np.searchsorted(low, settings, "left") - np.searchsorted(high, settings, "right")
        return settings, count / len(self.low)

    def best(self) -> float:
        """Return the largest clean accuracy of any setting."""
        return float(self.steps()[1].max())

    def reaches(self, target: float) -> bool:
        """Return whether any setting has at least the clean accuracy `target`."""
        check_share(target, "clean accuracy")
        return self.best() >= target

    def largest_setting(self, target: float) -> float:
        """Return the largest, and so most robust, setting with at least the clean accuracy `target`."""
        check_share(target, "clean accuracy")
        settings, accuracy = self.steps()
        if not (enough := settings[accuracy >= target]).size:
            best = int(accuracy.argmax())
            offer = math.floor(1000 * accuracy[best]) / 1000  # rounded down, so that the offer can be reached
            highest = f"{offer:.3f}, at {self.parameter} {settings[best]:.3f}"
            hint = f"the best on {len(self.low):,} images is {highest}; ask for at most that"
            raise ValueError(f"expected a clean accuracy this pair can reach, got {target:.4g}: {hint}")
        return float(enough[-1])

    def describe(self, setting: float) -> str:
        """Return a line of text with the accuracy at a setting and at both limits."""
        at, first, last = (f"{100 * self(place):.2f} % at {place:.4g}" for place in (setting, *self.limits))
        return f"clean accuracy on {len(self.low):,} images by {self.parameter}: {at} ({first}, {last})"

    def save(self, path: Path) -> None:
        """Write the curve to a file. The setting for any clean accuracy can be computed from it without the models."""
        about = {"span": np.array(self.limits), "dial": np.array(self.parameter)}
        write_rows(path, {"low": self.low, "high": self.high, **about})

    @classmethod
    def load(cls, path: Path) -> CleanAccuracyCurve:
        """Read a curve that `save` wrote."""
        columns = read_rows(path)
        first, last = columns.get("span", np.array(cls.limits)).tolist()  # early files are about alpha
        return cls(columns["low"], columns["high"], (first, last), str(columns.get("dial", cls.parameter)))


def accuracy_curve(
    mixed: MixedClassifier, data: ImageData, *, batch_size: int = BATCH, progress: CountCallback = ignore_progress
) -> CleanAccuracyCurve:
    """Return the clean accuracy of a mixture at every alpha in [0, 1], or at every alpha_shift of a learned alpha."""
    _check_tunable(mixed)
    if not mixed.learns_alpha:
        return fixed_alpha_curve(mixed, data, batch_size=batch_size, progress=progress)

    def shifts(batch: Batch) -> Tensor:
        return _correct_shifts(mixed, *_mixer_pass(mixed, batch.images), batch.labels)

    return _shift_curve(_per_image(shifts, mixed, data, batch_size, progress))


def fixed_alpha_curve(
    mixed: MixedClassifier, data: ImageData, *, batch_size: int = BATCH, progress: CountCallback = ignore_progress
) -> CleanAccuracyCurve:
    """Return the clean accuracy of a mixture at every alpha that is shared by all images."""

    def alphas(batch: Batch) -> Tensor:
        if isinstance(mixed.alpha, Mixer):
            base_outputs, output = _mixer_pass(mixed, batch.images)
            return torch.stack(correct_alphas(mixed, base_outputs.g, output.h, batch.labels))
        scaled = ((mixed.standard, mixed.standard_scale), (mixed.robust, mixed.robust_scale))
        g, h = ((fp32_logits(model, batch.images).double() * scale).softmax(1) for model, scale in scaled)
        return torch.stack(correct_interval(g, h, batch.labels))

    if not isinstance(mixed.alpha, Mixer):
        check_data(data)
        for batch in batches(data.take(slice(CHECKED)), CHECKED, device=device_of(mixed, data)):
            # A mixture refuses probabilities. Its own alpha may have a value for each image of the data.
            fp32_logits(mixed.with_alpha(0.5), batch.images)
    return CleanAccuracyCurve(*_per_image(alphas, mixed, data, batch_size, progress))


def current_setting(mixed: MixedClassifier) -> float:
    """Return the alpha of a mixture inside its range, or the alpha_shift of a learned alpha."""
    _check_tunable(mixed)
    if mixed.learns_alpha:
        return mixed.alpha_shift.item()
    if isinstance(mixed.alpha, nn.Module):
        return mixed.alpha_range[0].item()
    low, high = mixed.alpha_range.to(mixed.alpha)
    return torch.lerp(low, high, mixed.alpha).item()


def at_setting(mixed: MixedClassifier, setting: float) -> MixedClassifier:
    """Return the view of a mixture with this alpha, or with this alpha_shift of a learned alpha."""
    _check_tunable(mixed)
    if mixed.learns_alpha:
        return mixed.with_sigmoid(mixed.alpha_scale, setting)
    if isinstance(mixed.alpha, Mixer):  # the mixer is kept, because it changes the logits of h
        return mixed.with_alpha_range(setting, setting)
    return mixed.with_alpha_range(0, 1).with_alpha(setting)


def shift_curve(
    mixed: MixedClassifier, base_outputs: BaseOutputs, output: MixerOutput, labels: Tensor
) -> CleanAccuracyCurve:
    """Return the clean accuracy of a mixture at every alpha_shift, from the input and the output of its `Mixer`."""
    return _shift_curve(_correct_shifts(mixed, base_outputs, output, labels).cpu().numpy())


def check_share(target: float, name: str) -> None:
    """Raise an error if a target accuracy is not in (0, 1]."""
    check_number(**{name.replace(" ", "_"): target})
    if not 0 < target <= 1:
        raise ValueError(f"expected a {name} in (0, 1], such as 0.9, got {target}")


def _check_tunable(mixed: MixedClassifier) -> None:
    """Raise an error if a mixture has neither an alpha nor a shift to choose."""
    if not isinstance(mixed, MixedClassifier):
        raise TypeError(f"expected a mixture to tune, got {type(mixed).__name__}: ads.MixedClassifier(g, h, 0.5)")
    if isinstance(mixed.alpha, Mixer):
        check_eval(mixed)
    elif isinstance(mixed.alpha, nn.Module):
        found = f"the module {type(mixed.alpha).__name__}, which has no shift"
        hint = "tune mixed.with_alpha(0.5), or make it a Mixer"
        raise TypeError(f"expected alpha to be a number or a Mixer such as ads.MixingNetwork, got {found}: {hint}")


def _correct_shifts(mixed: MixedClassifier, base_outputs: BaseOutputs, output: MixerOutput, labels: Tensor) -> Tensor:
    """Return [3, N]: the ends of the interval of shifts where an image is correct, and the shift with the middle alpha.

    The middle alpha is (low + high) / 2, for the range (low, high) of alpha.
    """
    low, high = mixed.alpha_range.tolist()
    if low == high:
        found = f"({low:g}, {high:g}), where no shift changes alpha"
        raise ValueError(f"expected an alpha_range of some width, got {found}: pass mixed.with_alpha_range(0, 1)")
    alphas = torch.stack(correct_alphas(mixed, base_outputs.g, output.h, labels))
    middle = -mixed.alpha_scale.double() * output.score.double()
    return torch.cat([shifts_of(mixed, alphas, output.score), middle[None]])


def _shift_curve(columns: np.ndarray) -> CleanAccuracyCurve:
    """Return the curve of the columns that `_correct_shifts` returns."""
    low, high, middle = columns
    return CleanAccuracyCurve(low, high, (middle.min().item() - SATURATED, middle.max().item() + SATURATED), "shift")


def _mixer_pass(mixed: MixedClassifier, images: Tensor) -> tuple[BaseOutputs, MixerOutput]:
    """Return the input and the output of the `Mixer` in one full-precision pass of the mixture."""
    with mixer_calls(mixed) as seen:
        fp32_logits(mixed, images)
    return seen[0]


def _per_image(
    function: Callable[[Batch], Tensor],
    model: nn.Module,
    data: ImageData,
    batch_size: int,
    progress: CountCallback,
) -> np.ndarray:
    """Return the columns that `function` computes for each batch, for all images."""
    check_data(data)
    warn_if_unfit(model, data)
    columns = []
    for batch in batches(data, batch_size, device=device_of(model, data)):
        columns.append(function(batch).cpu())
        progress(len(batch.labels))
    return torch.cat(columns, dim=1).numpy()
