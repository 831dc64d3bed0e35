"""Progress bars of the verbs: what is done, and the time left, estimated from the pace so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from adaptive_smoothing.attacks.titles import stage_title
from adaptive_smoothing.cli.console import TimeBar
from adaptive_smoothing.runs.sharded import Progress


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
class RunProgress:
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
        so_far = "" if progress.robust is None else f", {self.word} so far {100 * progress.robust:.1f} %"
        self.bar.say(f"{int(left + 0.999):,} images left{so_far}{_stage(progress.stage)}", seconds)


def _stage(stage: str) -> str:
    """Return the title of the stage that is running, for example `, audit: Square`."""
    part, separator, key = stage.rpartition(": ")
    return f", {part}{separator}{stage_title(key)}" if stage else ""
