"""Functions recorded as CUDA graphs. A replay costs the host almost nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn


class Recorder:
    """Records functions on one stream, with one memory pool that all graphs share.

    Memory that one stream has freed is not used by another one, and graphs of different pools share nothing. The graphs
    run one after the other and no result outlives a replay, so sharing is safe.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device)
        with torch.cuda.device(device):
            self.pool = torch.cuda.MemPool()

    def record(self, warm_up: Callable[[], object], step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Return the graph of a step. Recording computes nothing, so `warm_up` must not change the state.

        The warm-up loads kernels and compiles, which is impossible while a graph is recorded.
        """
        self.stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            with torch.cuda.use_mem_pool(self.pool):
                warm_up()
            # As torch.cuda.graph does, without emptying the cache each time. Its type stubs know another handle.
            torch.cuda.synchronize()
            graph.capture_begin(pool=cast(Any, self.pool.id))
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # which would hide the reason, such as a lack of memory
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for recording. Every further stream would keep a workspace of the matrix library."""
    return torch.cuda.Stream(device)


class RecordedModel(nn.Module):
    """A frozen model for batches of one size, whose passes forwards and backwards are recorded on a GPU.

    On another device, or if the model cannot be recorded, it is called as it is.
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.function: Callable[[Tensor], Tensor] = model.__call__
        if images.is_cuda:
            with suppress(RuntimeError):
                recorded = torch.cuda.make_graphed_callables(model.__call__, (images.clone().requires_grad_(),))
                self.function = cast(Callable[[Tensor], Tensor], recorded)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)
