"""The columns of `rows.npz` with outputs of the model: probabilities and confidences; of a mixture also g, h, alpha.

The names of the columns begin with `clean_` or `attacked_`. Those of g and h go on with `g_` or `h_`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier
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
        columns[f"{version}_alpha"] = bases["alpha"]
        for name in BASES:
            columns[f"{version}_{name}_prediction"] = bases[name].argmax(1)
            columns |= _probability_columns(bases[name], f"{version}_{name}_")
    return columns


def base_outputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return alpha and the logits of g and h as they are mixed, in full precision; nothing for other models."""
    if not isinstance(model, MixedClassifier):
        return {}
    with torch.no_grad(), full_precision(), torch.autocast(images.device.type, enabled=False):
        parts = with_smaller_batches(lambda size: list(map(model.mix, images.split(size))), chunk_size(images))
    return {name: torch.cat([getattr(part, name) for part in parts]).float() for name in ("alpha", *BASES)}


def _probability_columns(logits: Tensor, prefix: str) -> dict[str, Tensor]:
    """Return the largest probability of each image, and the probabilities of all classes if there are few."""
    probabilities = logits.float().softmax(1)
    columns = {f"{prefix}confidence": probabilities.amax(1)}
    if probabilities.shape[1] <= MOST_CLASSES:
        columns[f"{prefix}probabilities"] = probabilities.half()
    return columns
