"""Checkpoints: safetensors files with facts in the header. Signals are delayed until one can be written."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaptive_smoothing.results import atomic

STDERR = 2
FINISHING = "\nfinishing the step and writing a checkpoint; press Ctrl-C again to stop at once\n"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used."""


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors, and facts as JSON, to one file. After a crash, the file is the old one or the new one."""
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
        found = f"{path}, which is not a checkpoint of this package ({error})"
        raise CheckpointError(f"expected a checkpoint, got {found}: delete it") from error


@contextmanager
def delayed_interrupts() -> Iterator[list[int]]:
    """Let the step finish on the first SIGINT or SIGTERM, so that a whole checkpoint can be written, and say so.

    Yields the list of received signals. A second signal has its usual effect.
    """
    received: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot handle signals
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    previous = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()
        # A print of the interrupted code may be unfinished, which `print` does not allow for.
        os.write(STDERR, FINISHING.encode())

    try:
        for number in previous:
            signal.signal(number, receive)
        yield received
    finally:
        restore()
