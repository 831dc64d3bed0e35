"""The columns of `rows.npz` with outputs of the model: probabilities and confidences; of a mixture also g, h, alpha.

The names of the columns begin with `clean_` or `attacked_`. Those of g and h go on with `g_` or `h_`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.operating_point import SHIFT, correct_points, mixer_calls, operating_point
from adaptive_smoothing.models.inference import chunk_size, full_precision
from adaptive_smoothing.models.memory import with_smaller_batches

# Up to so many classes the probabilities of all classes are kept, in half precision: with ten classes 20 bytes for each
# image and output. For ImageNet they would take 2 kB. The confidence is always kept, in float32.
MOST_CLASSES = 100
CLEAN, ATTACKED = "clean", "attacked"
BASES = ("g", "h")


def output_columns(logits: Tensor, bases: dict[str, Tensor], version: str) -> dict[str, Tensor]:
    """Return the columns of one version of the images, `CLEAN` or `ATTACKED`.

    Args:
        logits: of the model.
        bases: what `base_outputs` returned.
    """
    columns = _probability_columns(logits, f"{version}_")
    if bases:
        columns |= {f"{version}_{name}": column for name, column in bases.items() if name not in BASES}
        for name in BASES:
            columns[f"{version}_{name}_prediction"] = bases[name].argmax(1)
            columns |= _probability_columns(bases[name], f"{version}_{name}_")
    return columns


def base_outputs(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return what the parts of a mixture compute, in full precision; nothing for other models.

    These are alpha and the logits of g and h as they are mixed; the interval from `low` to `high` of operating points
    at which the mixture is correct, unless it has none; and of a learned alpha its `score`, times the scale.
    """
    if not isinstance(model, MixedClassifier):
        return {}
    with torch.no_grad(), full_precision(), torch.autocast(images.device.type, enabled=False):
        return with_smaller_batches(lambda size: _mixed_outputs(model, images, labels, size), chunk_size(images))


def _mixed_outputs(mixed: MixedClassifier, images: Tensor, labels: Tensor, size: int) -> dict[str, Tensor]:
    """Return the `base_outputs` of a mixture, computed in batches of a size."""
    with mixer_calls(mixed) as calls:
        parts = list(map(mixed.mix, images.split(size)))
    found = {name: torch.cat([getattr(part, name) for part in parts]).float() for name in ("alpha", *BASES)}
    if (point := operating_point(mixed)) is None:
        return found
    score = torch.cat([output.score for _, output in calls]) if point["parameter"] == SHIFT else None
    low, high = correct_points(mixed, found["g"], found["h"], score, labels).float()
    learned = {} if score is None else {"score": (mixed.alpha_scale * score).float()}
    return found | {"low": low, "high": high} | learned


def _probability_columns(logits: Tensor, prefix: str) -> dict[str, Tensor]:
    """Return the largest probability of each image, and the probabilities of all classes if there are few."""
    probabilities = logits.float().softmax(1)
    columns = {f"{prefix}confidence": probabilities.amax(1)}
    if probabilities.shape[1] <= MOST_CLASSES:
        columns[f"{prefix}probabilities"] = probabilities.half()
    return columns
