"""The progress bar: times, and what a narrow terminal shows."""

import io

import pytest
from rich.console import Console

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
