"""Shards done by several processes, one a device: they meet in the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.multiprocessing as multiprocessing

from adaptive_smoothing.evaluation.judging import Judging, Progress


def spread(judging: Judging, devices: Sequence[str], watch: Callable[[Progress], None] | None) -> None:
    """Do every shard, number k on device k modulo their count; afterwards the journal has them all."""
    if judging.journal.folder is None:
        raise ValueError("expected a folder for the journal that processes meet in, got none: pass folder=")
    threads = max(1, torch.get_num_threads() // len(devices))
    judging = dataclasses.replace(judging, model=judging.model.cpu(), data=judging.data.to("cpu"))
    context = multiprocessing.start_processes(
        _work, args=(judging, list(devices), threads), nprocs=len(devices), join=False, start_method="spawn"
    )
    assert context is not None
    while not context.join(timeout=1):
        pass


def _work(rank: int, judging: Judging, devices: list[str], threads: int) -> None:
    device = torch.device(devices[rank])
    if device.type == "cpu":
        torch.set_num_threads(threads)
    mine = dataclasses.replace(judging, model=judging.model.to(device), device=device)
    for _ in mine.shards(mine.engine(), lambda progress: None, every=len(devices), first=rank):
        pass
