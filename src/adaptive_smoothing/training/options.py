"""Where and how a training runs, and how it stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adaptive_smoothing.results import check_writable

CHECKPOINT = "checkpoint.safetensors"


class Stopped(KeyboardInterrupt):
    """Training was interrupted, and there is a checkpoint to continue from."""


@dataclass(frozen=True)
class TrainingOptions:
    """Where and how a training runs. The settings that determine the weights are in the recipe.

    Args:
        folder: receives the checkpoint and the log.
        compiled: compile the networks; by default on CUDA only.
        resume: continue from the checkpoint in the folder. Without it, a checkpoint there is an error.
        quiet: show no progress bar.
        tensorboard: write events for TensorBoard, if it is installed.
    """

    folder: Path
    device: str = "cpu"
    compiled: bool | None = None
    resume: bool = False
    quiet: bool = False
    tensorboard: bool = True

    @property
    def checkpoint(self) -> Path:
        """Return the path of the checkpoint."""
        return self.folder / CHECKPOINT

    def check_folder(self) -> None:
        """Raise an error if the training would overwrite another one, or cannot write."""
        if self.checkpoint.exists() and not self.resume:
            hint = "continue with resume=True (--resume), choose another folder (--out), or delete it"
            raise FileExistsError(f"expected a folder without a run, got {self.folder}: {hint}")
        check_writable(self.folder, "choose another folder (--out)")

    @contextmanager
    def stops_with_checkpoint(self) -> Iterator[None]:
        """Turn Ctrl-C into `Stopped` if there is a checkpoint to continue from."""
        try:
            yield
        except KeyboardInterrupt:
            if self.checkpoint.exists():
                raise Stopped from None
            raise
