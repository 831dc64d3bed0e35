"""Progress of a run on the screen."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from adaptive_smoothing.cli.console import TimeBar
from adaptive_smoothing.runs.progress import Progress


@dataclass
class Watching:
    """Images left, the accuracy so far, and the time left as the pace of this process has it."""

    bar: TimeBar
    word: str = "robust"
    began: float | None = None
    start: float = field(default_factory=time.perf_counter)
    working: bool = False

    def __call__(self, progress: Progress) -> None:
        # Shards out of the journal, which name no stage, take no time and say nothing about the pace.
        idle, self.working = not (progress.stage or self.working), bool(progress.stage)
        if self.began is None or idle or progress.finished <= self.began:
            self.began, self.start = progress.finished, time.perf_counter()
        gone, left = progress.finished - self.began, progress.images - progress.finished
        rest = (time.perf_counter() - self.start) / gone * left if gone else None
        so_far = "" if progress.accuracy is None else f", {self.word} so far {100 * progress.accuracy:.1f} %"
        doing = f", {progress.stage}" if progress.stage else ""
        self.bar.say(f"{int(left + 0.999):,} images left{so_far}{doing}", rest)
