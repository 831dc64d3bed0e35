"""The clean accuracy of mixtures at every setting of their dial: alpha, or the shift of a learned alpha.

One pass over the images tells it exactly: each is right between two settings (`dial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

# This far from the middle a sigmoid is within 1e-5 of its ends.
SATURATED = 12.0
BATCH = 500


def shift_curve(
    base_outputs: BaseOutputs, advice: MixerOutput, labels: Tensor, mixed: MixedClassifier
) -> CleanAccuracyCurve:
    """Clean accuracy of `mixed` at every alpha_shift, from what its `Mixer` heard and said."""
    return _of_shifts(_correct_shifts(base_outputs, advice, labels, mixed).cpu().numpy())


def correct_alphas(mixed: MixedClassifier, g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the alphas between which `mixed` is right, from what stands for the logits of its networks."""
    g, h = (logits.double() for logits in mixed.transformed(g, h))
    return correct_interval((mixed.standard_scale * g).softmax(1), (mixed.robust_scale * h).softmax(1), labels)


def clean_accuracy(
    standard: nn.Module,
    robust: nn.Module,
    data: ImageData,
    *,
    standard_scale: float | Tensor = 1.0,
    robust_scale: float | Tensor = 1.0,
    batch_size: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> CleanAccuracyCurve:
    """Clean accuracy of the mixture of two classifiers at every alpha, measured on `data`.

    `progress` is called with the number of images of each finished batch.
    """
    bases = ((standard, standard_scale), (robust, robust_scale))

    def ends(batch: Batch) -> Tensor:
        g, h = ((fp32_logits(model, batch.images).double() * scale).softmax(1) for model, scale in bases)
        return torch.stack(correct_interval(g, h, batch.labels))

    return CleanAccuracyCurve(*_per_image(ends, robust, data, batch_size, progress))


def accuracy_curve(mixed: MixedClassifier, data: ImageData, **options: Any) -> CleanAccuracyCurve:
    """Clean accuracy of a mixture at every setting of its dial: alpha, or with a `Mixer` alpha_shift.

    Its other numbers stay as they are, but for the range of a fixed alpha, which becomes all of [0, 1]. A range without
    width is a fixed alpha, too, whatever the `Mixer` says. The options are those of `clean_accuracy`: batch_size,
    progress.
    """
    _check_dial(mixed)
    if not isinstance(mixed.alpha, Mixer):
        options |= {"standard_scale": mixed.standard_scale, "robust_scale": mixed.robust_scale}
        return clean_accuracy(mixed.standard, mixed.robust, data, **options)
    if not mixed.learns_alpha:
        return shared_alpha_curve(mixed, data, **options)

    def ends(batch: Batch) -> Tensor:
        return _correct_shifts(*_what_was_mixed(mixed, batch.images), batch.labels, mixed)

    return _of_shifts(_per_image(ends, mixed, data, **options))


def shared_alpha_curve(mixed: MixedClassifier, data: ImageData, **options: Any) -> CleanAccuracyCurve:
    """Clean accuracy of a mixture with a `Mixer` at every alpha that all images might share instead."""

    def ends(batch: Batch) -> Tensor:
        base_outputs, advice = _what_was_mixed(mixed, batch.images)
        return torch.stack(correct_alphas(mixed, base_outputs.g, advice.h, batch.labels))

    return CleanAccuracyCurve(*_per_image(ends, mixed, data, **options))


def current_setting(mixed: MixedClassifier) -> float:
    """Where the dial of a mixture stands: its alpha, or with a `Mixer` its alpha_shift."""
    _check_dial(mixed)
    if mixed.learns_alpha:
        return mixed.alpha_shift.item()
    return (mixed.alpha_range[0] if isinstance(mixed.alpha, nn.Module) else mixed.alpha).item()


def at_setting(mixed: MixedClassifier, setting: float) -> MixedClassifier:
    """The view of a mixture with its dial at `setting`."""
    _check_dial(mixed)
    if mixed.learns_alpha:
        return mixed.with_sigmoid(mixed.alpha_scale, setting)
    if isinstance(mixed.alpha, Mixer):  # which has a say in what stands for h
        return mixed.with_alpha_range(setting, setting)
    return mixed.with_alpha_range(0, 1).with_alpha(setting)


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


def _correct_shifts(base_outputs: BaseOutputs, advice: MixerOutput, labels: Tensor, mixed: MixedClassifier) -> Tensor:
    """For each image the shifts between which it is right, and the one that puts its alpha into the middle: [3, N]."""
    low, high = mixed.alpha_range.tolist()
    if low == high:
        raise ValueError(
            f"expected an alpha_range of some width, got ({low:g}, {high:g}), where no shift changes alpha: "
            "take mixed.with_alpha_range(0, 1)"
        )
    alphas = torch.stack(correct_alphas(mixed, base_outputs.g, advice.h, labels))
    middle = -mixed.alpha_scale.double() * advice.score.double()
    # Beyond the range an alpha is reached at no shift, so that its end lies at infinity.
    return torch.cat([torch.logit(((alphas - low) / (high - low)).clamp(0, 1)) + middle, middle[None]])


def _of_shifts(ends: np.ndarray) -> CleanAccuracyCurve:
    low, high, middle = ends
    return CleanAccuracyCurve(low, high, (middle.min().item() - SATURATED, middle.max().item() + SATURATED), "shift")


def _what_was_mixed(mixed: MixedClassifier, images: Tensor) -> tuple[BaseOutputs, MixerOutput]:
    """What the `Mixer` heard and said in the very pass that a verdict is read from."""
    heard: list[tuple[BaseOutputs, MixerOutput]] = []
    assert isinstance(mixed.alpha, Mixer)
    handle = mixed.alpha.register_forward_hook(lambda mixer, inputs, advice: heard.append((inputs[0], advice)))
    try:
        fp32_logits(mixed, images)
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
    answers = []
    for batch in batches(data, batch_size, device=device_of(model, data)):
        answers.append(function(batch).cpu())
        if progress is not None:
            progress(len(batch.labels))
    return torch.cat(answers, dim=1).numpy()
