"""Functions recorded as CUDA graphs. To replay a graph costs the host almost nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import LossLogits, Objective, loss_and_gradient
from adaptive_smoothing.models.memory import device_number
from adaptive_smoothing.threat import column


class RecordingError(RuntimeError):
    """A step cannot be recorded as a CUDA graph."""


class Recorder:
    """Records functions on one stream, with one memory pool that all graphs share.

    PyTorch does not reuse the memory of one stream for another stream, nor that of one pool for another pool. One
    stream and one pool therefore save memory. This is safe, because the graphs run one after the other, and no graph
    needs the results of another one.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device_number(device))
        with torch.cuda.device(device):
            self.pool = torch.cuda.MemPool()

    def record(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Make a step, then record another one, which computes nothing, and return its graph.

        The first step loads kernels and compiles, which is impossible while a graph is recorded. If only recording
        fails, the error is a `RecordingError`.
        """
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            with torch.cuda.use_mem_pool(self.pool):
                step()
            # As torch.cuda.graph does, without emptying the cache each time.
            torch.cuda.synchronize()
            try:
                graph = self._capture(step)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise RecordingError(str(error)) from error
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph

    def _capture(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=cast(Any, self.pool.id))  # the cast is for torch's type stubs
        try:
            step()
        except BaseException:
            with suppress(RuntimeError):  # a second error would hide the first, such as a lack of memory
                graph.capture_end()
            raise
        graph.capture_end()
        return graph


@cache
def _stream(number: int) -> torch.cuda.Stream:
    """Return the stream of a GPU for recording. There is only one, because each keeps a workspace of cuBLAS."""
    return torch.cuda.Stream(torch.device("cuda", number))


class RecordedObjective:
    """An objective of one model for batches of one size, whose loss and gradient are recorded as one graph.

    The objective is called as it is for batches of another size, without a GPU, and if the model cannot be recorded.
    """

    def __init__(self, objective: Objective, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.objective, self.images, self.labels = objective, images.clone(), labels.clone()
        self.answer: tuple[Tensor, Tensor, Tensor] | None = None  # loss, logits and gradient, written by each replay
        self.graph: torch.cuda.CUDAGraph | None = None

        def compute() -> None:
            self.answer = loss_and_gradient(objective, model, self.images, self.labels)

        if images.is_cuda:
            with suppress(RuntimeError):
                self.graph = Recorder(images.device).record(compute)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> LossLogits:
        if self.graph is None or self.answer is None or images.shape != self.images.shape:
            return self.objective(model, images, labels)
        self.images.copy_(images.detach())
        self.labels.copy_(labels)
        self.graph.replay()
        return _WithGradient.apply(images, *self.answer)


class _WithGradient(torch.autograd.Function):
    """A loss per image and logits that were computed before, with the gradient of the loss."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, loss: Tensor, logits: Tensor, gradient: Tensor) -> LossLogits:
        ctx.save_for_backward(gradient.clone())
        return loss.clone(), logits.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * column(gradients[0], gradient), None, None, None
