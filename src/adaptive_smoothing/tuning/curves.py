"""Clean accuracy of mixtures at every setting: alpha, or the shift of a learned alpha.

One pass over the images is exact, because each image is classified correctly on one interval of settings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve, correct_interval

# This far from its middle a sigmoid is within 1e-5 of its ends.
SATURATED = 12.0
BATCH = 500

Progress = Callable[[int], None]


def accuracy_curve(
    mixed: MixedClassifier, data: ImageData, *, batch_size: int = BATCH, progress: Progress | None = None
) -> CleanAccuracyCurve:
    """Return the clean accuracy of a mixture at every alpha, or with a learned alpha at every alpha_shift.

    Its other numbers are unchanged, except that a fixed alpha ranges over all of [0, 1]. A `Mixer` whose `alpha_range`
    has no width has a fixed alpha.

    Args:
        progress: called with the number of images of each finished batch.
    """
    _check_tunable(mixed)
    if not mixed.learns_alpha:
        return fixed_alpha_curve(mixed, data, batch_size=batch_size, progress=progress)

    def shifts(batch: Batch) -> Tensor:
        return _correct_shifts(*_mixer_pass(mixed, batch.images), batch.labels, mixed)

    return _from_shifts(_per_image(shifts, mixed, data, batch_size, progress))


def fixed_alpha_curve(
    mixed: MixedClassifier, data: ImageData, *, batch_size: int = BATCH, progress: Progress | None = None
) -> CleanAccuracyCurve:
    """Return the clean accuracy of a mixture at every alpha that is shared by all images."""

    def alphas(batch: Batch) -> Tensor:
        if isinstance(mixed.alpha, Mixer):
            base_outputs, output = _mixer_pass(mixed, batch.images)
            return torch.stack(correct_alphas(mixed, base_outputs.g, output.h, batch.labels))
        scaled = ((mixed.standard, mixed.standard_scale), (mixed.robust, mixed.robust_scale))
        g, h = ((fp32_logits(model, batch.images).double() * scale).softmax(1) for model, scale in scaled)
        return torch.stack(correct_interval(g, h, batch.labels))

    return CleanAccuracyCurve(*_per_image(alphas, mixed, data, batch_size, progress))


def shift_curve(
    base_outputs: BaseOutputs, output: MixerOutput, labels: Tensor, mixed: MixedClassifier
) -> CleanAccuracyCurve:
    """Return the clean accuracy of `mixed` at every alpha_shift, from the inputs and the output of its `Mixer`."""
    return _from_shifts(_correct_shifts(base_outputs, output, labels, mixed).cpu().numpy())


def correct_alphas(mixed: MixedClassifier, g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each image the interval of alphas at which `mixed` is correct, from the logits of both networks."""
    g, h = (logits.double() for logits in mixed.transformed(g, h))
    return correct_interval((mixed.standard_scale * g).softmax(1), (mixed.robust_scale * h).softmax(1), labels)


def current_setting(mixed: MixedClassifier) -> float:
    """Return the alpha of a mixture, or the alpha_shift of a learned alpha."""
    _check_tunable(mixed)
    if mixed.learns_alpha:
        return mixed.alpha_shift.item()
    return (mixed.alpha_range[0] if isinstance(mixed.alpha, nn.Module) else mixed.alpha).item()


def at_setting(mixed: MixedClassifier, setting: float) -> MixedClassifier:
    """Return the view of a mixture with this alpha, or with this alpha_shift of a learned alpha."""
    _check_tunable(mixed)
    if mixed.learns_alpha:
        return mixed.with_sigmoid(mixed.alpha_scale, setting)
    if isinstance(mixed.alpha, Mixer):  # which is kept, because it changes the logits of h
        return mixed.with_alpha_range(setting, setting)
    return mixed.with_alpha_range(0, 1).with_alpha(setting)


def _check_tunable(mixed: MixedClassifier) -> None:
    if not isinstance(mixed, MixedClassifier):
        raise TypeError(f"expected a mixture to tune, got {type(mixed).__name__}: ads.MixedClassifier(g, h, 0.5)")
    if not isinstance(mixed.alpha, nn.Module):
        return
    if not isinstance(mixed.alpha, Mixer):
        raise TypeError(
            "expected alpha to be a number or a Mixer such as ads.MixingNetwork, got the module "
            f"{type(mixed.alpha).__name__}, which has no shift: tune mixed.with_alpha(0.5), or make it a Mixer"
        )
    check_eval(mixed)


def _correct_shifts(base_outputs: BaseOutputs, output: MixerOutput, labels: Tensor, mixed: MixedClassifier) -> Tensor:
    """Return for each image the interval of shifts at which it is correct, and the shift that makes its alpha the
    middle of the range: [3, N]."""
    low, high = mixed.alpha_range.tolist()
    if low == high:
        raise ValueError(
            f"expected an alpha_range of some width, got ({low:g}, {high:g}), where no shift changes alpha: "
            "take mixed.with_alpha_range(0, 1)"
        )
    alphas = torch.stack(correct_alphas(mixed, base_outputs.g, output.h, labels))
    middle = -mixed.alpha_scale.double() * output.score.double()
    # No shift reaches an alpha outside of the range: the logit of a clamped alpha is infinite.
    return torch.cat([torch.logit(((alphas - low) / (high - low)).clamp(0, 1)) + middle, middle[None]])


def _from_shifts(ends: np.ndarray) -> CleanAccuracyCurve:
    low, high, middle = ends
    return CleanAccuracyCurve(low, high, (middle.min().item() - SATURATED, middle.max().item() + SATURATED), "shift")


def _mixer_pass(mixed: MixedClassifier, images: Tensor) -> tuple[BaseOutputs, MixerOutput]:
    """Return the input and the output of the `Mixer` in one full-precision pass of the mixture."""
    seen: list[tuple[BaseOutputs, MixerOutput]] = []
    assert isinstance(mixed.alpha, Mixer)
    handle = mixed.alpha.register_forward_hook(lambda mixer, inputs, output: seen.append((inputs[0], output)))
    try:
        fp32_logits(mixed, images)
    finally:
        handle.remove()
    return seen[0]


def _per_image(
    function: Callable[[Batch], Tensor],
    model: nn.Module,
    data: ImageData,
    batch_size: int,
    progress: Progress | None,
) -> np.ndarray:
    """Return the columns that `function` computes for each batch, joined for all images."""
    check_data(data)
    columns = []
    for batch in batches(data, batch_size, device=device_of(model, data)):
        columns.append(function(batch).cpu())
        if progress is not None:
            progress(len(batch.labels))
    return torch.cat(columns, dim=1).numpy()
