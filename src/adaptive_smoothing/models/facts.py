"""Facts about models for result files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build


def model_facts(name: str) -> dict[str, Any]:
    """Return the name of a model and, if it is stored, its architecture, options, sha256 and parameter count."""
    card = zoo.find_card(name)
    if card is None:
        return {"name": name}
    sha256 = card.sha256 or zoo.file_sha256(card.path)
    return {"name": name, "arch": card.arch, "options": card.options, "sha256": sha256, "parameters": parameters(card)}


def parameters(card: zoo.Card) -> int:
    """Return the number of parameters of the architecture, without reading the weights."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in build(card.arch, **card.options).parameters())


def short_name(name: str) -> str:
    """Return a model's name or path in a form that can be part of a folder's name."""
    return Path(name.partition("?")[0].replace(":", "-")).stem
