"""Shards done by several processes, one a device: they meet in the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing as multiprocessing

if TYPE_CHECKING:
    from adaptive_smoothing.runs.sharded import Progress, ShardedRun


def spread(run: ShardedRun, devices: Sequence[str], watch: Callable[[Progress], None]) -> None:
    """Do every shard, number k on device k modulo their count; afterwards the journal has them all."""
    threads = max(1, torch.get_num_threads() // len(devices))
    home = run.device
    # With the size of the shards, as a device of another kind would cut others.
    size = run.images_per_shard
    portable = dataclasses.replace(run, model=run.model.cpu(), data=run.data.to("cpu"), shard_size=size)
    told = multiprocessing.get_context("spawn").Queue()
    arguments = (portable, list(devices), threads, told)
    context = multiprocessing.start_processes(
        _work, args=arguments, nprocs=len(devices), join=False, start_method="spawn"
    )
    latest: dict[int, Progress] = {}
    try:
        while not context.join(timeout=0.5):
            _pass_on(told, latest, watch)
        _pass_on(told, latest, watch)
    except multiprocessing.ProcessRaisedException as error:
        # Its last line says what was wrong; above it is the stack of another process.
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    except multiprocessing.ProcessExitedException as error:
        raise RuntimeError(
            f"a process has ended before its work ({error}): the same command goes on from there"
        ) from error
    finally:
        # After Ctrl-C some may be at work, and Python would wait for them.
        for process in context.processes:
            process.terminate()
        run.model.to(home)


def _pass_on(told: Any, latest: dict[int, Progress], watch: Callable[[Progress], None]) -> None:
    """What the processes say, added up."""
    while not told.empty():
        rank, progress = told.get()
        latest[rank] = progress
        parts = list(latest.values())
        sums = {name: sum(getattr(part, name) for part in parts) for name in ("finished", "seen", "standing")}
        watch(dataclasses.replace(progress, **sums))


def _work(rank: int, run: ShardedRun, devices: list[str], threads: int, told: Any) -> None:
    device = torch.device(devices[rank])
    if device.type == "cpu":
        torch.set_num_threads(threads)
    mine = dataclasses.replace(run, model=run.model.to(device), device=device)
    for _ in mine.shards(lambda so_far: told.put((rank, so_far)), every=len(devices), first=rank):
        pass
