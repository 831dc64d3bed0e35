"""Progress of a training run: a progress bar, a line of JSON per epoch, and TensorBoard if it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adaptive_smoothing.results import atomic
from adaptive_smoothing.runs.progress import CountCallback

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TrainingMonitor:
    """Shows the progress of a run and logs its epochs to `log.jsonl` in a folder."""

    def __init__(self, folder: Path, *, title: str = "training", quiet: bool = False, tensorboard: bool = True) -> None:
        self.log_file, self.title = folder / "log.jsonl", title
        folder.mkdir(parents=True, exist_ok=True)
        counts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.progress = Progress(*counts, *times, TextColumn("{task.fields[note]}"), disable=quiet)
        self.task = self.progress.add_task(title, total=None, note="")
        self.board: SummaryWriter | None = None
        with suppress(ImportError):
            if tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(folder / "tensorboard"))

    @contextmanager
    def show(self, total: int, done: int) -> Iterator[None]:
        """Show the progress bar of the training."""
        self.progress.reset(self.task, total=total, completed=done)
        try:
            with self.progress:
                yield
        finally:
            if self.board is not None:
                self.board.flush()

    @contextmanager
    def show_evaluation(self, split: str, images: int) -> Iterator[CountCallback]:
        """Show a bar for the evaluation on a split; yield a function to call with the number of finished images."""
        self.progress.update(self.task, visible=False)
        task = self.progress.add_task(f"evaluating {self.title} on {split}", total=images, note="")
        with self.progress:
            yield lambda done: self.progress.update(task, completed=done)

    def advance(self, done: int) -> None:
        """Show that this number of steps is done."""
        self.progress.update(self.task, completed=done)

    def rewind(self, step: int) -> None:
        """Remove the rows after `step` from the log, which a resumed run logs again, and a row cut off by a crash."""
        kept = ""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            for row in self.log_file.read_text().splitlines():
                if json.loads(row)["step"] <= step:
                    kept += f"{row}\n"
        with atomic(self.log_file) as partial:
            partial.write_text(kept)

    def log(self, row: dict[str, Any]) -> None:
        """Log one finished epoch."""
        with self.log_file.open("a") as file:
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
