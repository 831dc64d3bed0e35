"""Memory of a GPU: the limit of a run, the memory that a batch takes, and giving it back when a run ends.

The limit counts what PyTorch allocates. The CUDA context takes about half a gigabyte more.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

# The limit of this process and of those that it starts, in bytes. `limit_memory` sets it.
VARIABLE = "ADAPTIVE_SMOOTHING_MEMORY"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Memory for one batch under attack. It does not depend on the memory that is free, so that the size of a batch, and
# with it the rounding of fast arithmetic, is the same on every GPU that has twice this memory.
BATCH_BYTES = 4 * 2**30

_DEPTH: ContextVar[int] = ContextVar("depth", default=0)
Result = TypeVar("Result")


def parse_bytes(text: str) -> int:
    """Return a number of bytes from a text such as `6G` or `500M`, where a G is 2**30 bytes. It needs a unit."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT])(?:i?B)?\s*", str(text), re.IGNORECASE)
    try:
        size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    except ValueError:  # such as 1.2.3
        size = 0
    if size <= 0:
        raise ValueError(f"expected an amount of memory such as 6G or 500M, got {text!r}: write a number and a unit")
    return size


def limit_memory(limit: str | None) -> None:
    """Limit the GPU memory of this process, and of those that it starts.

    Args:
        limit: a number with a unit, such as 6G or 500M; None lifts the limit.

    Examples:
        >>> ads.limit_memory("6G")  # doctest: +SKIP
        >>> ads.limit_memory(None)
    """
    size = None if limit is None else parse_bytes(limit)
    if size is not None and not torch.cuda.is_available():
        raise ValueError(f"expected a GPU for a memory limit, got {limit!r} on a machine without one: leave it out")
    if size is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = str(size)
    for number in range(torch.cuda.device_count()):
        _set_limit(number, size)


def apply_limit() -> None:
    """Apply the limit to all GPUs of this process that `limit_memory` has set, here or in the parent process."""
    if size := os.environ.get(VARIABLE):
        for number in range(torch.cuda.device_count()):
            _set_limit(number, int(size))


def device_number(device: torch.device) -> int:
    """Return the number of a GPU; `cuda` without a number is the current one."""
    return torch.cuda.current_device() if device.index is None else device.index


def _set_limit(device: int, size: int | None, most: float = 1.0) -> None:
    """Limit the memory of a GPU to a number of bytes (None: all), and to the share `most` of the memory that it has."""
    share = 1.0 if size is None else size / torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(most, share), device)


@contextmanager
def limited_memory(limit: str | None, device: torch.device) -> Iterator[None]:
    """Limit the memory of one GPU inside of the context; None sets no limit. A limit that is lower already stays."""
    if limit is None:
        yield
        return
    size = parse_bytes(limit)
    if device.type != "cuda":
        raise ValueError(f"expected a GPU for memory={limit!r}, got {device}: leave it out")
    number = device_number(device)
    before = torch.cuda.get_per_process_memory_fraction(number)
    _set_limit(number, size, before)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, number)


def batch_bytes(device: torch.device) -> int:
    """Return the memory for one batch under attack: `BATCH_BYTES`, or half of what this process may allocate."""
    total = torch.cuda.get_device_properties(device).total_memory
    return min(BATCH_BYTES, int(total * torch.cuda.get_per_process_memory_fraction(device_number(device)) / 2))


def bytes_per_image(model: Callable[[Tensor], object], images: Tensor) -> int | None:
    """Return the memory that a model keeps for the backward pass, per image, or None if it cannot be measured.

    This is the difference of two passes, because what does not grow with the batch, such as weights, does not count.
    """
    few = images[:1].expand(4, *images.shape[1:])
    try:
        return max(1, (_kept_bytes(model, few.repeat(2, 1, 1, 1)) - _kept_bytes(model, few)) // len(few))
    except RuntimeError as error:
        if "support saved tensor hooks" not in str(error):  # what a model with a transform of torch.func raises
            raise
        return None


def _kept_bytes(model: Callable[[Tensor], object], images: Tensor) -> int:
    """Return the memory that one forward pass keeps for the backward pass."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        # Without its history, so that an operation that keeps its own output is not kept alive by it.
        kept.append(tensor.detach())
        return kept[-1]

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images.clone().requires_grad_())
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in kept)}
    return sum(storages.values())


def with_smaller_batches(work: Callable[[int], Result], size: int) -> Result:
    """Return work(size), where `size` is halved each time that memory runs out."""
    while True:
        try:
            return work(size)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
        # Outside of the handler: the exception keeps the tensors of the failed attempt alive.
        torch.cuda.empty_cache()


@contextmanager
def memory_given_back(*, collect: bool = False) -> Iterator[None]:
    """Give the unused memory of GPUs back to the device at the end; with `collect`, that of circular references too.

    If such contexts are nested, only the outermost one does so. It also works as a decorator.
    """
    token = _DEPTH.set(_DEPTH.get() + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)
        if not _DEPTH.get() and torch.cuda.is_initialized():
            if collect:
                gc.collect()
            torch.cuda.empty_cache()
