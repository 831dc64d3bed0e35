"""Progress of a training run: a progress bar, a line of JSON per epoch, and TensorBoard if it is installed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_smoothing.results import atomic
from adaptive_smoothing.runs.progress import CountCallback
from adaptive_smoothing.runs.progress_bar import TimeBar

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TrainingMonitor:
    """Shows the progress of a run and logs its epochs to `log.jsonl` in a folder."""

    def __init__(self, folder: Path, *, title: str = "training", quiet: bool = False, tensorboard: bool = True) -> None:
        self.log_file, self.title, self.quiet = folder / "log.jsonl", title, quiet
        self.note = ""  # of the last epoch
        self.tensorboard = tensorboard
        self.board: SummaryWriter | None = None

    @contextmanager
    def show(self, total: int, done: int) -> Iterator[CountCallback]:
        """Show the progress of the training; yield a function to call with the number of finished steps."""
        try:
            with self._bar(total, done, lambda now: f"step {now:,} of {total:,}{self.note}, {self.title}") as advance:
                yield advance
        finally:
            if self.board is not None:
                self.board.flush()

    @contextmanager
    def show_evaluation(self, split: str, images: int) -> Iterator[CountCallback]:
        """Show the progress of an evaluation; yield a function to call with the number of finished images."""
        text = f"evaluating {self.title} on {split}"
        with self._bar(images, 0, lambda now: f"image {now:,} of {images:,}, {text}") as advance:
            yield advance

    @contextmanager
    def _bar(self, total: int, done: int, describe: Callable[[int], str]) -> Iterator[CountCallback]:
        """Show a bar; yield a function to call with the number of finished things. It measures the pace from `done`."""
        start = time.perf_counter()
        with TimeBar(disable=self.quiet) as bar:

            def advance(now: int) -> None:
                pace = (time.perf_counter() - start) / (now - done) if now > done else None
                bar.report(describe(now), None if pace is None else pace * (total - now))

            advance(done)
            yield advance

    def begin(self, step: int) -> None:
        """Make the folder and open the log and TensorBoard.

        The rows after `step`, which a resumed run logs again, are removed from the log, and a row cut off by a crash.
        """
        kept = ""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            for row in self.log_file.read_text().splitlines():
                if json.loads(row)["step"] <= step:
                    kept += f"{row}\n"
        with atomic(self.log_file) as partial:
            partial.write_text(kept)
        with suppress(ImportError):
            if self.tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(self.log_file.with_name("tensorboard")))

    def log(self, row: dict[str, Any]) -> None:
        """Log one finished epoch."""
        with self.log_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.note = f", loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}"
        if "val_clean" in row:
            self.note += f", val {row['val_clean']:.3f}"
        if "val_pgd10" in row:
            self.note += f"/{row['val_pgd10']:.3f}"
        if self.board is not None:
            for key, value in row.items():
                self.board.add_scalar(key, value, row["step"])
