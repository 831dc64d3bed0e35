"""The machine and the software versions of a run."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from adaptive_smoothing.version import code_version


def environment(device: torch.device | str) -> dict[str, Any]:
    """Return the date, the versions of the software, and the machine."""
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


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads on {os.cpu_count()} cores"
