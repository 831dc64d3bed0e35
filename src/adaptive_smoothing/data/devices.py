"""Checks of the devices that a user names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaptive_smoothing.settings.checks import check_list


def check_device(device: torch.device | str) -> None:
    """Raise an error if this machine does not have the device."""
    try:
        _find(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # torch raises all of them
        reason = (str(error).splitlines() or ["it cannot be used"])[0]
        raise ValueError(f"expected a device of this machine, got {str(device)!r}: {reason}; try 'cpu'") from error


def _find(device: torch.device | str) -> None:
    """Raise an error of torch if this machine does not have the device.

    Nothing is allocated on a GPU: that would create a CUDA context, which takes several hundred MB in this process.
    """
    if device is None or not torch.cuda.is_available() or torch.device(device).type != "cuda":
        torch.empty(0, device=device)
    elif (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")


def check_devices(devices: Sequence[str]) -> None:
    """Raise an error for anything but a list of devices of this machine."""
    check_list("names", devices=devices)
    if not isinstance(devices, Sequence):  # a generator can be read once only
        raise TypeError(f"expected devices as a list of names, got {devices!r}: pass list(...)")
    for device in devices:
        check_device(device)
