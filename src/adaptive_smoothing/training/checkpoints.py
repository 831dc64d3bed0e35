"""Checkpoints: safetensors files with facts in the header, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaptive_smoothing.results import atomic


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used."""


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors, and facts as JSON, to one file; a crash leaves the old file or the new one."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    with atomic(path) as partial:
        save_file(plain, partial, metadata={"facts": json.dumps(facts)})


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and facts that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of this package: {error}") from error
