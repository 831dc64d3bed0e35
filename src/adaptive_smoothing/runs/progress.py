"""The progress of a long run, and the functions it is reported to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How much of a run is done.

    Args:
        images: number of images of the run.
        finished: work done, in images; a shard in progress counts in part.
        seen: images that have a result, final or preliminary.
        correct: how many of these are robust, or certified and correct.
        stage: what is being done; empty for a shard that is finished or was read from the journal.
    """

    images: int
    finished: float
    seen: int
    correct: int
    stage: str

    @property
    def accuracy(self) -> float | None:
        """Share of the images seen that are correct; None before the first."""
        return self.correct / self.seen if self.seen else None

    def during(self, stage: str, share: float, images: int, correct: int) -> Progress:
        """Return the progress when a share of the work on one more shard is done; see `ShardProgress`."""
        return Progress(self.images, self.finished + share * images, self.seen + images, self.correct + correct, stage)


RunProgress = Callable[[Progress], None]
# Called with the stage, the share of the work on a shard that is done, the shard's images, and how many are correct.
ShardProgress = Callable[[str, float, int, int], None]
# Called with the share of the work that is done.
ProgressCallback = Callable[[float], None]
# Called with how much was finished since the last call, in images or in batches.
CountCallback = Callable[[int], None]


def ignore_progress(progress: object) -> None:
    """Do nothing: the default of a progress callback."""
