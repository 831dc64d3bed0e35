"""The operating points at which a mixture classifies an image correctly.

An operating point is the alpha that all images share, or the shift of a learned alpha. The lead of a class is linear in
alpha, and alpha grows with the shift. So an image is classified correctly on one interval of operating points.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier

# The parameters of an operating point.
ALPHA, SHIFT = "alpha", "shift"


@contextmanager
def mixer_calls(mixed: MixedClassifier) -> Iterator[list[tuple[BaseOutputs, MixerOutput]]]:
    """Yield a list to which every pass of a mixture with a `Mixer` adds the input and the output of the mixer."""
    seen: list[tuple[BaseOutputs, MixerOutput]] = []
    if not isinstance(mixed.alpha, Mixer):
        yield seen
        return
    with mixed.alpha.register_forward_hook(lambda mixer, inputs, output: seen.append((inputs[0], output))):
        yield seen


def operating_point(mixed: nn.Module) -> dict[str, Any] | None:
    """Return the operating point as plain data; None for a model that has no single one.

    `parameter` is `alpha` or `shift`, `value` its value, and `range` the range of a learned alpha.
    """
    if not isinstance(mixed, MixedClassifier):
        return None
    low, high = mixed.alpha_range.tolist()
    if isinstance(mixed.alpha, Mixer) and low < high:
        return {"parameter": SHIFT, "value": mixed.alpha_shift.item(), "range": [low, high]}
    if isinstance(mixed.alpha, nn.Module) and low < high:
        return None
    alpha = torch.zeros(()) if isinstance(mixed.alpha, nn.Module) else mixed.alpha
    if alpha.dim():
        return None
    return {"parameter": ALPHA, "value": torch.lerp(torch.tensor(low), torch.tensor(high), alpha.float().cpu()).item()}


def correct_points(mixed: MixedClassifier, g: Tensor, h: Tensor, score: Tensor | None, labels: Tensor) -> Tensor:
    """Return [2, N]: the ends of the open interval of operating points at which each image is classified correctly.

    Args:
        g, h: the logits that are mixed, as `mix` returns them.
        score: what the `Mixer` returned; None for an alpha that all images share.
    """
    alphas = torch.stack(correct_interval(g.double().softmax(1), h.double().softmax(1), labels))
    return alphas if score is None else shifts_of(mixed, alphas, score)


def shifts_of(mixed: MixedClassifier, alphas: Tensor, score: Tensor) -> Tensor:
    """Return the shifts at which images with these scores have the given alphas.

    No shift reaches an alpha outside of the range: the logit of a clamped alpha is infinite.
    """
    low, high = mixed.alpha_range.tolist()
    return torch.logit(((alphas - low) / (high - low)).clamp(0, 1)) - mixed.alpha_scale.double() * score.double()


def correct_alphas(mixed: MixedClassifier, g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each image the interval of alphas at which `mixed` is correct, from the logits of both networks."""
    g, h = (logits.double() for logits in mixed.transformed(g, h))
    return correct_interval((mixed.standard_scale * g).softmax(1), (mixed.robust_scale * h).softmax(1), labels)


def correct_interval(g: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each image the open interval of alphas where (1 - alpha) g + alpha h is largest at its label.

    `g` and `h` are probabilities [N, C]. The interval of an image that is correct at alpha = 0 or 1 extends beyond that
    end. An image that is correct at no alpha has low >= high, or NaN if its probabilities have a NaN.
    """
    lead_g, lead_h = (scores.gather(1, labels[:, None]) - scores for scores in (g, h))
    ahead_g, ahead_h = lead_g > 0, lead_h > 0
    # The alpha where the label and another class are equal: (1 - alpha) lead_g + alpha lead_h = 0.
    crossing = lead_g / (lead_g - lead_h)
    high = torch.where(ahead_g & ~ahead_h, crossing, torch.inf)
    low = torch.where(~ahead_g & ahead_h, crossing, -torch.inf)
    low = torch.where(~ahead_g & ~ahead_h, torch.inf, low)
    label = torch.zeros_like(g, dtype=torch.bool).scatter(1, labels[:, None], True)
    return low.masked_fill(label, -torch.inf).amax(1), high.masked_fill(label, torch.inf).amin(1)
