"""What a person sees of a run: a progress bar, a line of JSON an epoch, TensorBoard where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from adaptive_smoothing.results import atomic


class TrainingMonitor:
    def __init__(self, folder: Path, *, title: str = "training", quiet: bool = False, tensorboard: bool = True) -> None:
        self.folder, self.title = folder, title
        folder.mkdir(parents=True, exist_ok=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            disable=quiet,
        )
        self.task = self.progress.add_task(title, total=None, note="")
        self.board = _board(folder / "tensorboard") if tensorboard else None

    @contextmanager
    def watching(self, total: int, done: int) -> Iterator[None]:
        self.progress.reset(self.task, total=total, completed=done)
        try:
            with self.progress:
                yield
        finally:
            if self.board is not None:
                self.board.flush()

    @contextmanager
    def measuring(self, total: int) -> Iterator[Callable[[int], None]]:
        """A second bar for what follows the training; yields what is called with each number of images done."""
        self.progress.update(self.task, visible=False)
        task = self.progress.add_task(f"measuring {self.title}", total=total, note="")
        with self.progress:
            yield lambda images: self.progress.advance(task, images)

    def advance(self, done: int) -> None:
        self.progress.update(self.task, completed=done)

    @property
    def journal(self) -> Path:
        return self.folder / "log.jsonl"

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`: a run that goes on from there will log it again."""
        rows = self.journal.read_text().splitlines() if self.journal.exists() else []
        kept = [row for row in rows if _step_of(row) <= step]
        with atomic(self.journal) as partial:
            partial.write_text("".join(f"{row}\n" for row in kept))

    def log(self, row: dict[str, Any]) -> None:
        """One finished epoch."""
        with self.journal.open("a") as file:
            file.write(json.dumps(row) + "\n")
        note = f"loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}"
        if "val_clean" in row:
            note += f"  val {row['val_clean']:.3f}"
        if "val_pgd10" in row:
            note += f"/{row['val_pgd10']:.3f}"
        self.progress.update(self.task, note=note)
        if self.board is not None:
            for key, value in row.items():
                self.board.add_scalar(key, value, row["step"])


def _step_of(row: str) -> float:
    """The step of a logged row; a row torn by a crash is after any."""
    try:
        return float(json.loads(row)["step"])
    except json.JSONDecodeError:
        return float("inf")


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
