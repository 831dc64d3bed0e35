"""One process per device: each does its share of the shards and writes them to the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing as multiprocessing

from adaptive_smoothing.runs.progress import Progress, RunProgress

if TYPE_CHECKING:
    from adaptive_smoothing.runs.sharded import ShardedRun


def spread(run: ShardedRun, devices: Sequence[str], progress: RunProgress) -> None:
    """Do shard k on device k modulo their count, for all k; afterwards the journal has every shard."""
    threads = max(1, torch.get_num_threads() // len(devices))
    home = run.device
    # The size of the shards is fixed here, because its default differs between types of device.
    size = run.images_per_shard
    portable = dataclasses.replace(run, model=run.model.cpu(), data=run.data.to("cpu"), shard_size=size)
    reports = multiprocessing.get_context("spawn").Queue()
    arguments = (portable, list(devices), threads, reports)
    context = multiprocessing.start_processes(
        _work, args=arguments, nprocs=len(devices), join=False, start_method="spawn"
    )
    latest: dict[int, Progress] = {}
    try:
        while not context.join(timeout=0.5):
            _pass_on(reports, latest, progress)
        _pass_on(reports, latest, progress)
    except multiprocessing.ProcessRaisedException as error:
        # The last line is the message; the lines above it are the stack of the other process.
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    except multiprocessing.ProcessExitedException as error:
        raise RuntimeError(
            f"a process ended before its work was done ({error}): the same command continues from there"
        ) from error
    finally:
        # After Ctrl-C some may still be running, and Python would wait for them.
        for process in context.processes:
            process.terminate()
        run.model.to(home)


def _pass_on(reports: Any, latest: dict[int, Progress], progress: RunProgress) -> None:
    """Report the sum of the latest progress of all processes."""
    while not reports.empty():
        rank, now = reports.get()
        latest[rank] = now
        parts = list(latest.values())
        sums = {name: sum(getattr(part, name) for part in parts) for name in ("finished", "seen", "correct")}
        progress(dataclasses.replace(now, **sums))


def _work(rank: int, run: ShardedRun, devices: list[str], threads: int, reports: Any) -> None:
    device = torch.device(devices[rank])
    if device.type == "cpu":
        torch.set_num_threads(threads)
    mine = dataclasses.replace(run, model=run.model.to(device), device=device)
    for _ in mine.shards(lambda now: reports.put((rank, now)), every=len(devices), first=rank):
        pass
