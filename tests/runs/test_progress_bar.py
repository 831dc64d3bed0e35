"""The progress bar: times, what a narrow terminal shows, and the lines in a file."""

import io
import time

import pytest
from rich.console import Console

from adaptive_smoothing.runs import progress_bar
from adaptive_smoothing.runs.progress_bar import TimeBar, clock


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0:00"), (65.4, "1:05"), (3599.7, "1:00:00"), (2 * 3600 + 65, "2:01:05")]
)
def test_a_duration_has_hours_if_it_needs_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_narrow_terminal_shortens_the_text_and_not_the_times() -> None:
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=60, no_color=True)
    bar = TimeBar(console)
    bar.report("1,000 images left, robust so far 37.5 %, targeted APGD with a long title", 125.0)
    console.print(bar.get_renderable())
    (line,) = printed.getvalue().splitlines()
    assert "1,000 images" in line and "…" in line and "0:00 elapsed, 2:05 left" in line


def lines(printed: io.StringIO) -> list[str]:
    return [line for line in printed.getvalue().splitlines() if "elapsed: " in line or "left: " in line]


def test_a_file_has_a_line_at_the_start_and_one_when_the_time_left_is_known() -> None:
    printed = io.StringIO()
    with TimeBar(Console(file=printed, width=80)) as bar:
        for left in (None, None, 65.0, 64.0):
            bar.report("3 images left", left)
    assert lines(printed) == ["0:00 elapsed: 3 images left", "0:00 elapsed, 1:05 left: 3 images left"]


def test_a_file_has_lines_during_a_step_that_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0.5)
    printed = io.StringIO()
    with TimeBar(Console(file=printed, width=80)) as bar:
        bar.report("a long step", None)
        time.sleep(1.3)
    assert len(lines(printed)) == 2


def test_a_terminal_has_no_lines() -> None:
    printed = io.StringIO()
    with TimeBar(Console(file=printed, width=80, force_terminal=True)) as bar:
        bar.report("3 images left", None)
    assert not lines(printed)
