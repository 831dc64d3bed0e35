"""How a result came about: the models, the machine, the versions. What a reviewer asks first."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.training.recipe import CommonRecipe
from adaptive_smoothing.version import code_version


def environment(device: torch.device | str) -> dict[str, Any]:
    """The machine and the versions of what ran on it."""
    device = torch.device(device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "adaptive-smoothing": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


def training_facts(recipe: CommonRecipe, images: int, seconds: float, device: torch.device | str) -> dict[str, Any]:
    """What made a mixing network, for the card of its mixture."""
    return {"recipe": asdict(recipe), "train_images": images, "seconds": round(seconds, 1), **environment(device)}


def model_facts(name: str) -> dict[str, Any]:
    """A model's name, and what its card says where it has one."""
    card = zoo.find_card(name)
    if card is None:
        return {"name": name}
    sha256 = card.sha256 or zoo.file_sha256(card.path)
    return {"name": name, "arch": card.arch, "options": card.options, "sha256": sha256, "parameters": parameters(card)}


def parameters(card: zoo.Card) -> int:
    """Counted on the architecture without its weights, which would take time to read."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in build(card.arch, **card.options).parameters())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads on {os.cpu_count()} cores"
