"""Work on a whole data set, shard by shard: by several processes, and again after a crash, with the same result.

Only one shard at a time is in floats or on the device. What a shard becomes does not depend on the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models.digest import model_digest
from adaptive_smoothing.runs.journal import Columns, Journal
from adaptive_smoothing.runs.workers import spread
from adaptive_smoothing.version import code_version

# Told the name of what is being done, its share of the work on a shard, the images of that, and how many of them stand.
ShardWatch = Callable[[str, float, int, int], None]


@dataclass(frozen=True)
class Progress:
    """How far a run is: images' worth of work, and what is known of those seen so far."""

    images: int
    finished: float
    seen: int
    standing: int
    stage: str

    @property
    def robust(self) -> float | None:
        return self.standing / self.seen if self.seen else None

    def during(self, stage: str, share: float, images: int, left: int) -> Progress:
        """Later: some of the work on a shard of so many images is done, and so many of them are left standing."""
        return Progress(self.images, self.finished + share * images, self.seen + images, self.standing + left, stage)


Watch = Callable[[Progress], None]


def check_size(name: str, size: int | None) -> None:
    if size is not None and size < 1:
        raise ValueError(f"expected a {name} of at least 1, got {size}: leave it out for one that suits the device")


@dataclass(frozen=True, kw_only=True)
class ShardedRun(ABC):
    """What is done to which images, where, and where finished shards are kept. Children say how a shard is done."""

    # Images that are worked on, and journalled, together.
    SHARD: ClassVar[dict[str, int]] = {"cuda": 1000, "cpu": 32}

    model: nn.Module
    data: ImageData
    device: torch.device
    journal: Journal
    shard_size: int | None = None

    def __post_init__(self) -> None:
        check_size("shard_size", self.shard_size)

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the result depends on, beside model, data and code."""

    @abstractmethod
    def make_tool(self) -> Any:
        """What one process makes once and works with on all its shards."""

    @abstractmethod
    def shard(self, name: str, rows: slice, watch: ShardWatch) -> Columns:
        """Do one shard, or read it from the journal."""

    @abstractmethod
    def standing(self, columns: Columns) -> int:
        """How many images of a finished shard stand."""

    @cached_property
    def tool(self) -> Any:
        return self.make_tool()

    def columns(self, watch: Watch, devices: Sequence[str] = ()) -> Columns:
        """All shards, put together; by one process on each of several devices, which meet in the journal."""
        if len(devices) > 1:
            spread(self, devices, watch)
        # What several processes did has been told already.
        tell = watch if len(devices) <= 1 else lambda progress: None
        parts = [part for _, part in self.shards(tell)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}

    def shards(self, watch: Watch, *, every: int = 1, first: int = 0) -> Iterator[tuple[int, Columns]]:
        """The shards in order, or every so many of them from the first on."""
        so_far = Progress(len(self.data), 0, 0, 0, "")
        for number, start in enumerate(range(0, len(self.data), self.images_per_shard)):
            if number % every != first:
                continue
            rows = slice(start, start + self.images_per_shard)
            tell = lambda *told, so_far=so_far: watch(so_far.during(*told))  # noqa: E731
            columns = self.shard(f"shard-{number:06}", rows, tell)
            so_far = so_far.during("", 1.0, len(columns["label"]), self.standing(columns))
            watch(so_far)
            yield number, columns

    @property
    def images_per_shard(self) -> int:
        return self.shard_size or self.SHARD.get(self.device.type, 256)

    def batch(self, rows: slice | np.ndarray) -> Batch:
        """Some images as floats on the device."""
        data = self.data.take(rows)
        return next(iter(batches(data, len(data), device=self.device)))

    @cached_property
    def binding(self) -> dict[str, Any]:
        """What the result depends on; hashing a large model takes a while."""
        return {
            "model": model_digest(self.model),
            "data": self.data.fingerprint(),
            **self.settings,
            "shard size": self.images_per_shard,
            "code": code_version(),
            "torch": torch.__version__,
        }
