"""Terminal output that the verbs share: progress bars, measurements that move them, reports, paths of the files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text
from torch import nn

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.sweep import attack_count, tradeoff
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.report.sentences import Report, sentences
from adaptive_smoothing.report.tables import Table, rich_table, tables
from adaptive_smoothing.runs.progress import Progress
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve

# Seconds between two lines of progress in a file.
LINE_EVERY = 30.0


def screen() -> Console:
    """Return a console that does not colour the numbers in a text."""
    return Console(highlight=False)


class TimeLeft(ProgressColumn):
    """Counts down to the expected end. Rich's own column starts a new estimate whenever the expected end moves."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("-:--")
        return Text(clock(task.total - (task.elapsed or 0)), style="progress.remaining")


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, for example 1:05."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}"


class TimeBar(RichProgress):
    """One bar with the time elapsed and the time left. In a file, where a bar cannot move, it prints lines instead."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        super().__init__(*columns, TimeLeft(), console=console)
        self.only = self.add_task("", total=None)
        self.printed = 0.0

    def say(self, text: str, seconds_left: float | None) -> None:
        """Show what is being done, and the seconds left if they are known."""
        elapsed = self.tasks[0].elapsed or 0.0
        total = None if seconds_left is None else elapsed + max(seconds_left, 0.0)
        self.update(self.only, description=text, completed=elapsed, total=total)
        if not self.console.is_terminal and elapsed >= self.printed + LINE_EVERY:
            self.printed = elapsed
            left = "" if seconds_left is None else f", {clock(seconds_left)} left"
            self.console.print(f"{clock(elapsed)} elapsed{left}: {text}", markup=False, soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """Print a report of a trade-off."""
    print_report(console, sentences(report), tables(report))


def print_report(console: Console, texts: Iterable[str], shown: Iterable[Table]) -> None:
    """Print sentences and tables, with an empty line before each."""
    for text in texts:
        console.print(f"\n{text}", markup=False)
    for table in shown:
        console.print()
        console.print(rich_table(table))


def finish(console: Console, page: Path, interrupted: bool) -> None:
    """Print where the files are, and exit with 130 if Ctrl-C ended the run."""
    names = sorted(path.name for path in page.parent.iterdir() if path != page)
    console.print(f"\nWritten to {page.parent}: {', '.join(names)}", markup=False)
    # A path that is broken over two lines cannot be clicked or copied.
    console.print(f"Open this page in a browser: {page.resolve().as_uri()}", markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


class Count:
    """Counts things of one kind as they are done, and moves the bar."""

    def __init__(self, bar: TimeBar, total: int, kind: str) -> None:
        self.bar, self.total, self.kind, self.done = bar, total, kind, 0
        self.start = time.perf_counter()
        bar.say(f"0 of {total:,} {kind}", None)

    def __call__(self, more: int) -> None:
        self.done += more
        pace = (time.perf_counter() - self.start) / self.done
        self.bar.say(f"{self.done:,} of {self.total:,} {self.kind}", pace * (self.total - self.done))


@dataclass
class RunProgressBar:
    """Shows the images left, the accuracy so far, and the time left at the pace of this process."""

    bar: TimeBar
    word: str = "robust"
    began: float | None = None
    start: float = field(default_factory=time.perf_counter)
    working: bool = False

    def __call__(self, progress: Progress) -> None:
        # Shards read from the journal have no stage. They take no time, so they do not count for the pace.
        idle, self.working = not (progress.stage or self.working), bool(progress.stage)
        if self.began is None or idle or progress.finished <= self.began:
            self.began, self.start = progress.finished, time.perf_counter()
        done, left = progress.finished - self.began, progress.images - progress.finished
        seconds = (time.perf_counter() - self.start) / done * left if done else None
        so_far = "" if progress.accuracy is None else f", {self.word} so far {100 * progress.accuracy:.1f} %"
        self.bar.say(f"{int(left + 0.999):,} images left{so_far}{_stage(progress.stage)}", seconds)


def _stage(stage: str) -> str:
    """Return the title of the stage that is running, for example `, audit: Square`."""
    part, separator, key = stage.rpartition(": ")
    return f", {part}{separator}{stage_title(key)}" if stage else ""


def measure_tradeoff(
    g: nn.Module,
    h: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    mix_alphas: Sequence[float],
    batch_size: int,
    console: Console,
) -> tuple[Tradeoff, bool]:
    """Return the trade-off of the images that were measured, and whether Ctrl-C ended the measurement."""
    with TimeBar(console) as bar:
        count = Count(bar, attack_count(len(data), batch_size, mix_alphas), "attacks on batches of images")
        run = tradeoff(
            g, h, data, attack, mix_alphas=mix_alphas, batch_size=batch_size, progress=count, keep_on_interrupt=True
        )
        if interrupted := run.images < len(data):
            console.print(f"[yellow]stopped[/]: the result is for the {run.images:,} images that were finished")
    return run, interrupted


def measure_clean_accuracy(
    g: nn.Module, h: nn.Module, val: ImageData, *, batch_size: int, folder: Path, console: Console
) -> CleanAccuracyCurve:
    """Return the clean accuracy at every alpha on validation images, and store it in the run folder."""
    with TimeBar(console) as bar:
        count = Count(bar, len(val), "validation images predicted")
        accuracy = accuracy_curve(MixedClassifier(g, h, 0.5), val, batch_size=batch_size, progress=count)
    accuracy.save(folder / VALIDATION)
    return accuracy
