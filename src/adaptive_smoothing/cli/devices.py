"""Which device to compute on."""

from __future__ import annotations

import torch


def pick_device(name: str) -> str:
    """`auto` is the GPU where there is one; anything else has to exist here."""
    found = devices()
    if name == "auto":
        return "cuda" if "cuda" in found else "cpu"
    if name not in found:
        raise ValueError(
            f"expected a device of this machine ({', '.join(found)}) or auto, got {name!r}: name one of these"
        )
    return name


def devices() -> list[str]:
    """What torch can compute on here."""
    gpus = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [
        "cpu",
        *(gpus if torch.cuda.is_available() else []),
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]
