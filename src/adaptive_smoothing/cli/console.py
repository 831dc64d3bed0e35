"""Terminal output that verbs share: progress bars, printed reports, and the measurements of `sweep`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.alarms import Alarm
from adaptive_smoothing.evaluation.sweep import attack_count, tradeoff
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.report.tables import Table, rich_table
from adaptive_smoothing.report.tradeoff.report import Choice, Report
from adaptive_smoothing.report.tradeoff.sentences import sentences
from adaptive_smoothing.report.tradeoff.tables import tables
from adaptive_smoothing.results import percent, read_json
from adaptive_smoothing.runs.folder import RESULT
from adaptive_smoothing.runs.progress import Progress
from adaptive_smoothing.runs.progress_bar import TimeBar
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve


def screen() -> Console:
    """Return a console that does not colour the numbers in a text."""
    return Console(highlight=False, emoji=False)


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


def show_alarms(console: Console, alarms: Sequence[Alarm] | None) -> None:
    """Print the alarms of a run; None if they were off."""
    for alarm in alarms or ():
        console.print(f"[yellow]alarm[/] {alarm.name}:", end=" ")
        console.print(f"{alarm.observation}; {alarm.advice}.", markup=False)
    if not alarms:
        console.print("Alarms were off." if alarms is None else "No alarm fired.")


def finish(console: Console, page: Path, interrupted: bool) -> None:
    """Print the paths of the files, and exit with 130 if Ctrl-C ended the run."""
    names = sorted(path.name for path in page.parent.iterdir() if path != page)
    console.print(f"\nWritten to {page.parent}: {', '.join(names)}", markup=False)
    show_page(console, page)
    print_run(page.parent)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def show_page(console: Console, page: Path) -> None:
    """Print the address of a page."""
    # A path that is broken over two lines cannot be clicked or copied.
    console.print(f"Open this page in a browser: {page.resolve().as_uri()}", markup=False, soft_wrap=True)


def print_run(folder: Path, file: str = RESULT) -> None:
    """Print the result in a run folder, if --json was given."""
    print_result(read_json(folder / file), folder)


class Count:
    """Counts things of one kind as they are done, and moves the bar."""

    def __init__(self, bar: TimeBar, total: int, kind: str) -> None:
        self.bar, self.total, self.kind, self.done = bar, total, kind, 0
        self.start = time.perf_counter()
        bar.report(f"0 of {total:,} {kind}", None)

    def __call__(self, more: int) -> None:
        self.done += more
        pace = (time.perf_counter() - self.start) / self.done
        self.bar.report(f"{self.done:,} of {self.total:,} {self.kind}", pace * (self.total - self.done))


@dataclass
class RunProgressBar:
    """Shows the images left, the accuracy so far, and the time left at the pace of this process.

    Args:
        word: what the accuracy is called.
        began: the work that was finished when the measurement of the pace began, at the time `start`.
        working: whether a stage was running at the last call.
    """

    bar: TimeBar
    word: str = "robust"
    began: float | None = None
    start: float = 0.0
    working: bool = False

    def __call__(self, progress: Progress) -> None:
        # A shard that is read from the journal never has a stage. It takes no time, so it does not count for the pace.
        from_journal = not progress.stage and not self.working
        self.working = bool(progress.stage)
        if self.began is None or from_journal or progress.finished <= self.began:
            self.began, self.start = progress.finished, time.perf_counter()
        done, left = progress.finished - self.began, progress.images - progress.finished
        seconds = (time.perf_counter() - self.start) / done * left if done else None
        so_far = "" if progress.accuracy is None else f", {self.word} so far {percent(progress.accuracy)}"
        images = math.ceil(left - 1e-3)  # shares of a shard add up to a whole number except for rounding errors
        text = f"{images:,} image{'s' * (images != 1)} left{so_far}{_stage(progress.stage)}"
        self.bar.report(text, seconds)


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


def choose(accuracy: CleanAccuracyCurve, wanted: float, console: Console) -> Choice:
    """Return the largest alpha with the wanted accuracy on validation images, and print it."""
    alpha, images = accuracy.largest_setting(wanted), len(accuracy.low)
    choice = Choice(wanted, alpha, accuracy(alpha), images)
    console.print(
        f"The largest α with a clean accuracy of {percent(wanted)} is {alpha:.3f}. On {images:,} validation images "
        f"it gives {choice.reached}.\n"
    )
    return choice
