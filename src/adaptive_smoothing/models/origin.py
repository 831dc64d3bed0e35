"""Where a model came from, which a loaded model remembers."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from adaptive_smoothing.models.digest import LOADED_IDENTITY, ORIGIN
from adaptive_smoothing.models.identity import Identity


class Origin(TypedDict):
    """Where a model was found: its name and, for a stored model, its architecture, options and sha256.

    `loader` is the `module:function` of the user that returned the model for this name. `build` is the description of a
    model that was stored with a mixture, see `construction`; `held` is true if its weights are in the folder.
    """

    name: str
    arch: NotRequired[str]
    options: NotRequired[dict[str, Any]]
    sha256: NotRequired[str]
    loader: NotRequired[str]
    build: NotRequired[dict[str, Any]]
    held: NotRequired[bool]


def placed(model: nn.Module, device: torch.device | str, found: Origin, identity: Identity | None = None) -> nn.Module:
    """Return a loaded model on a device.

    Args:
        found: where it was found.
        identity: its identity if it is from elsewhere and its name determines its weights; see `zoo.is_as_stored`.
    """
    setattr(model.to(device), ORIGIN, found)
    setattr(model, LOADED_IDENTITY, identity)
    if torch.device(device).type == "cuda":
        # Twice as fast on GPUs, and slower on CPUs.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def origin(model: nn.Module) -> Origin | None:
    """Return where a model was found, or None for a model that was made in another way."""
    return getattr(model, ORIGIN, None)


def loaded_identity(model: nn.Module) -> Identity | None:
    """Return the identity that a model from elsewhere had when it was loaded, if its name determines its weights."""
    return getattr(model, LOADED_IDENTITY, None)
