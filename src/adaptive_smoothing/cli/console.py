"""What the verbs share on the screen: the bar, the story and its tables, where the files are."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.report.sentences import Report, sentences
from adaptive_smoothing.report.tables import rich_table, tables

# Seconds between two lines of a bar that is written to a file.
LINE_EVERY = 30.0


def screen() -> Console:
    """Without colours for numbers: a story is not a log."""
    return Console(highlight=False)


class TimeLeft(ProgressColumn):
    """Counts down to the expected end. Rich's own column starts to guess anew whenever that end moves."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("-:--")
        return Text(clock(task.total - (task.elapsed or 0)), style="progress.remaining")


def clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}"


class TimeBar(Progress):
    """One bar of seconds gone and seconds to come, for work whose end is an estimate.

    In a file, where there can be no bar, a line now and then.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        super().__init__(*columns, TimeLeft(), console=console)
        self.only = self.add_task("", total=None)
        self.said = 0.0

    def say(self, text: str, seconds_left: float | None) -> None:
        """What is being done, and how much longer it will take."""
        gone = self.tasks[0].elapsed or 0.0
        total = None if seconds_left is None else gone + max(seconds_left, 0.0)
        self.update(self.only, description=text, completed=gone, total=total)
        if not self.console.is_terminal and gone >= self.said + LINE_EVERY:
            self.said = gone
            rest = "" if seconds_left is None else f", {clock(seconds_left)} left"
            self.console.print(f"{clock(gone)} gone{rest}: {text}", markup=False, soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """The story and the tables of a report."""
    for text in sentences(report):
        console.print()
        console.print(text, markup=False)
    for table in tables(report):
        console.print()
        console.print(rich_table(table))


def finish(console: Console, page: Path, interrupted: bool) -> None:
    """Say where the run is; one that Ctrl-C cut short ends like any command that was stopped."""
    say_where(console, page)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def say_where(console: Console, page: Path) -> None:
    names = sorted(path.name for path in page.parent.iterdir() if path != page)
    console.print(f"\nBeside the page in {page.parent}: {', '.join(names)}", markup=False)
    # A path that is broken over two lines cannot be clicked or copied.
    console.print(f"The page: {page.resolve().as_uri()}", markup=False, soft_wrap=True)
