"""Work on a data set shard by shard, in one process or several, with the same result after an interruption.

The result of a shard does not depend on the others. One shard at a time is on the device, as floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.queues import Queue
from pickle import PicklingError
from typing import Any, ClassVar

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from torch import nn

from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models.digest import model_digest
from adaptive_smoothing.models.memory import apply_limit
from adaptive_smoothing.runs.journal import Columns, Journal
from adaptive_smoothing.runs.progress import Progress, RunProgress, ShardProgress, ignore_progress
from adaptive_smoothing.settings.checks import check_whole
from adaptive_smoothing.version import code_version


def check_size(name: str, size: int | None) -> None:
    """Raise an error if the size of a batch or a shard is less than 1; None is the default for the device."""
    check_whole(**{name: size})
    if size is not None and size < 1:
        raise ValueError(f"expected a {name} of at least 1, got {size}: leave it out for one that suits the device")


@dataclass(frozen=True, kw_only=True)
class ShardedRun(ABC):
    """A model, data, a device, and the journal of finished shards. Subclasses process a shard."""

    # Images that are processed and journalled together, by type of device.
    SHARD: ClassVar[dict[str, int]] = {"cuda": 1000, "cpu": 32}

    model: nn.Module
    data: ImageData
    device: torch.device
    journal: Journal
    shard_size: int | None = None

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on, apart from the model, the data and the code."""

    @abstractmethod
    def shard(self, name: str, rows: slice, progress: ShardProgress) -> Columns:
        """Return the columns of one shard, computed or read from the journal."""

    @abstractmethod
    def count_correct(self, columns: Columns) -> int:
        """Return how many images of a finished shard are robust, or certified and correct."""

    def columns(self, progress: RunProgress, devices: Sequence[str] = ()) -> Columns:
        """Return the columns of all shards; several devices get one process each and share the journal."""
        if len(devices) > 1:
            _spread(self, devices, progress)
            progress = ignore_progress  # the processes have reported these shards already
        parts = list(self.shards(progress))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}

    def shards(self, progress: RunProgress, *, every: int = 1, first: int = 0) -> Iterator[Columns]:
        """Yield the columns of the shards first, first + every, first + 2 every, ..."""
        so_far = Progress(len(self.data), 0, 0, 0, "")
        for number, start in enumerate(range(0, len(self.data), self.images_per_shard)):
            if number % every != first:
                continue
            rows = slice(start, start + self.images_per_shard)
            columns = self.shard(f"shard-{number:06}", rows, lambda *now, so_far=so_far: progress(so_far.during(*now)))
            so_far = so_far.during("", 1.0, len(columns["label"]), self.count_correct(columns))
            progress(so_far)
            yield columns

    @property
    def images_per_shard(self) -> int:
        return self.shard_size or self.SHARD.get(self.device.type, 256)

    def batch(self, rows: slice | np.ndarray) -> Batch:
        """Return some images as floats on the device."""
        data = self.data.take(rows)
        return next(batches(data, len(data), device=self.device))

    @cached_property
    def binding(self) -> dict[str, Any]:
        """Everything that the result depends on; cached, because hashing a large model takes a while."""
        return {
            "model": model_digest(self.model),
            "data": self.data.fingerprint(),
            **self.settings,
            "shard size": self.images_per_shard,
            "code": code_version(),
            "torch": torch.__version__,
        }


def _spread(run: ShardedRun, devices: Sequence[str], progress: RunProgress) -> None:
    """Process all shards, with one process per device, and report the sum of their progress.

    Shard k is processed on device k modulo the number of devices. The results are in the journal.
    """
    threads = max(1, torch.get_num_threads() // len(devices))
    # The size of the shards is fixed here, because its default differs between types of device.
    size = run.images_per_shard
    portable = replace(run, model=run.model.cpu(), data=run.data.to("cpu"), shard_size=size)
    reports = multiprocessing.get_context("spawn").Queue()
    arguments = (portable, list(devices), threads, reports)
    try:
        _wait(_start(arguments, len(devices)), reports, progress)
    finally:
        run.model.to(run.device)


def _start(arguments: tuple[Any, ...], count: int) -> multiprocessing.ProcessContext:
    """Start the processes, or raise an error if something cannot be sent to them."""
    try:
        return multiprocessing.start_processes(_work, arguments, nprocs=count, join=False, start_method="spawn")
    except (PicklingError, AttributeError, TypeError) as error:  # pickle raises all of them
        expected = "expected a model and settings that can be sent to a process for each device"
        hint = "define functions and classes at the top level of a module, without lambda, or use one device"
        raise TypeError(f"{expected}, got an error ({error}): {hint}") from error


def _wait(
    processes: multiprocessing.ProcessContext, reports: Queue[tuple[int, Progress]], progress: RunProgress
) -> None:
    """Wait for the processes, which report their rank and progress, and report the sum."""
    latest: dict[int, Progress] = {}
    sums, done = ("finished", "seen", "correct"), False
    try:
        while not done:
            done = processes.join(timeout=0.5)
            while not reports.empty():
                rank, now = reports.get()
                latest[rank] = now
                progress(replace(now, **{name: sum(getattr(part, name) for part in latest.values()) for name in sums}))
    except multiprocessing.ProcessRaisedException as error:
        # The last line is the message; the lines above it are the stack of the other process.
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    except multiprocessing.ProcessExitedException as error:
        found, hint = f"one that ended early ({error})", "run the same command again to continue"
        raise RuntimeError(f"expected every process to finish its shards, got {found}: {hint}") from error
    finally:
        # After Ctrl-C some processes may still be running, and Python would wait for them.
        for process in processes.processes:
            process.terminate()


def _work(rank: int, run: ShardedRun, devices: list[str], threads: int, reports: Queue[tuple[int, Progress]]) -> None:
    """Process the shards of one device, and put the progress into the queue."""
    device = torch.device(devices[rank])
    apply_limit()
    if device.type == "cpu":
        torch.set_num_threads(threads)
    mine = replace(run, model=run.model.to(device), device=device)
    for _ in mine.shards(lambda now: reports.put((rank, now)), every=len(devices), first=rank):
        pass
