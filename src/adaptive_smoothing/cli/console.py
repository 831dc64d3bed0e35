"""Terminal output that the verbs share: the progress bar, the report, the paths of the files."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.report.sentences import Report, sentences
from adaptive_smoothing.report.tables import rich_table, tables

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


class TimeBar(Progress):
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
    """Print the sentences and the tables of a report."""
    for text in sentences(report):
        console.print()
        console.print(text, markup=False)
    for table in tables(report):
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
