"""A Python file with the model of a stored evaluation, as the argument of `benchmark` of RobustBench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels
from adaptive_smoothing.models.digest import model_digest

FILE = '''\
"""The evaluated model, for `benchmark` of RobustBench. Run this where the model was evaluated: names may be paths."""

import adaptive_smoothing as ads


def load_model():
    """Return the model in eval mode, from images in [0, 1] to logits."""
    return {model}
'''
# Only files that start with this line may be replaced.
FIRST_LINE = FILE.partition("\n")[0]


def loader_text(result: dict[str, Any], own: OwnModels | None = None) -> str:
    """Return the content of the file, or raise an error if the evaluated model cannot be loaded by name or folder.

    The model is loaded once, and its digest is compared with that of the evaluation.

    Args:
        own: the functions that a stored mixture may name.
    """
    names, own = _names(result["models"]), own or OwnModels()
    loaded = LoadedModel.load(*names, device="cpu", own=own).model
    if (found := model_digest(loaded)) != (expected := result["settings"]["model"]):
        hint = "the model or the code has changed; run this where the model was evaluated, or evaluate it again"
        raise ValueError(f"expected the evaluated model, with digest {expected:.12}, got {found:.12}: {hint}")
    return FILE.format(model=_call(*names, stored=isinstance(loaded, MixedClassifier), allow=own.allow))


def is_loader(path: Path) -> bool:
    """Return whether a file was written with the text of `loader_text`."""
    return path.read_bytes().startswith(FIRST_LINE.encode())


def _names(models: dict[str, Any]) -> tuple[str, str | None, float | None]:
    """Return what was named on the command line of the evaluation: a model, or g, h and alpha."""
    for model in models.values():
        if isinstance(model, dict) and "loader" in model:
            hint = f"call {model['loader']} in a file of your own"
            raise ValueError(f"expected a model with a name or a folder, got one of your --loader: {hint}")
    if "mixture" in models:  # older files do not have its source
        return models.get("source", models["mixture"]), None, None
    if "model" in models:
        return models["model"]["name"], None, None
    if not {"g", "h"} <= models.keys():
        raise ValueError("expected the name of the evaluated model in the run, got none: evaluate it by name")
    return models["g"]["name"], models["h"]["name"], models["alpha"]


def _call(model: str, robust: str | None, alpha: float | None, *, stored: bool, allow: list[str]) -> str:
    if robust is not None:
        return f"ads.MixedClassifier(ads.load_model({model!r}), ads.load_model({robust!r}), alpha={alpha!r})"
    if stored:
        allowed = f", allow={allow!r}" if allow else ""
        return f"ads.MixedClassifier.from_pretrained({model!r}{allowed})"
    return f"ads.load_model({model!r})"
