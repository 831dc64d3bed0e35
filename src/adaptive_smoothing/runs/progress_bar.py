"""A progress bar with the time left. In a file, where a bar cannot move, it prints lines instead."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

# Seconds between two lines of progress in a file.
LINE_EVERY = 30.0


class Description(ProgressColumn):
    """What is being done. It is shortened on a narrow terminal, so that the times are shown in full."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class Times(ProgressColumn):
    """The time elapsed and the time left. Rich's own column starts a new estimate whenever the expected end moves."""

    def render(self, task: Task) -> Text:
        return Text(_times(task), style="progress.elapsed")


class TimeBar(Progress):
    """One bar with the time elapsed and the time left, or lines with both if the output is a file."""

    def __init__(self, console: Console | None = None, *, disable: bool = False) -> None:
        super().__init__(Description(), BarColumn(12), Times(Column(no_wrap=True)), console=console, disable=disable)
        self.only = self.add_task("", total=None)
        self.prints_lines = not (disable or self.console.is_terminal or self.console.is_jupyter)
        self.printed = float("-inf")  # seconds, when the last line was printed
        self.estimated = False  # whether a line had the time left
        self.ended = threading.Event()

    def start(self) -> None:
        super().start()
        if self.prints_lines:
            self.ended.clear()
            threading.Thread(target=self._print_lines, daemon=True).start()

    def stop(self) -> None:
        self.ended.set()
        super().stop()

    def report(self, text: str, seconds_left: float | None) -> None:
        """Show what is being done, and the seconds left if they are known."""
        elapsed = self.tasks[0].elapsed or 0.0
        total = None if seconds_left is None else elapsed + max(seconds_left, 0.0)
        self.update(self.only, description=text, completed=elapsed, total=total)
        self._print_line_if_due()

    def _print_lines(self) -> None:
        """Print lines until the bar is stopped, also during a step that reports nothing."""
        while not self.ended.wait(1.0):
            self._print_line_if_due()

    def _print_line_if_due(self) -> None:
        """Print a line at the start, as soon as the time left is known, and every `LINE_EVERY` seconds."""
        task = self.tasks[0]
        elapsed = task.elapsed or 0.0
        estimated = task.total is not None
        due = elapsed >= self.printed + LINE_EVERY or (estimated and not self.estimated)
        if self.prints_lines and task.description and due:
            self.printed, self.estimated = elapsed, estimated or self.estimated
            self.console.print(f"{_times(task)}: {task.description}", markup=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, for example 1:05, or with hours, 2:01:05."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _times(task: Task) -> str:
    elapsed = task.elapsed or 0.0
    left = "" if task.total is None else f", {clock(task.total - elapsed)} left"
    return f"{clock(elapsed)} elapsed{left}"
