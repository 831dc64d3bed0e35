"""Inference in full precision, with checked images and logits; copies of a model on a CPU."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_images, check_logits, check_two_classes
from adaptive_smoothing.models.digest import all_tensors, attribute_tensors
from adaptive_smoothing.models.memory import with_smaller_batches

Result = TypeVar("Result")

# The largest number of images in one pass, and of pixel values.
CHUNK, PIXELS = 512, 2048 * 3 * 32 * 32
# Types that round too coarsely for logits to be compared.
HALF = (torch.float16, torch.bfloat16)


def full_precision() -> AbstractContextManager[None]:
    """Return a context in which a GPU computes float32 in full precision."""
    return float32_as("ieee")


@contextmanager
def float32_as(kind: str) -> Iterator[None]:
    """Set how a GPU computes float32: "ieee" in full, "tf32" with 10 bits of mantissa, several times as fast."""
    cudnn: Any = torch.backends.cudnn  # torch has no type stubs for its attributes
    settings = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = kind
    try:
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def fp32_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits in full precision, or raise an error for invalid images or logits that are not finite."""
    check_images(images)
    try:
        with torch.no_grad(), full_precision(), torch.autocast(images.device.type, enabled=False):
            logits = model(images)
    except RuntimeError as error:
        kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
        if isinstance(error, torch.OutOfMemoryError) or not kinds or torch.float32 in kinds:
            raise
        # torch does not explain that float32 images do not fit weights in another precision.
        found = f"weights in {', '.join(sorted(map(str, kinds)))} ({error})"
        raise ValueError(f"expected a model for images in float32, got {found}: call model.float()") from error
    check_logits(logits, images)
    check_two_classes(logits)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def fp32_logits_chunked(model: nn.Module, images: Tensor) -> Tensor:
    """Return `fp32_logits` of any number of images, computed in chunks."""

    def logits(size: int) -> Tensor:
        return torch.cat([fp32_logits(model, part) for part in images.split(size)])

    return with_smaller_batches(logits, chunk_size(images))


def chunk_size(images: Tensor) -> int:
    """Return the number of images for one pass without gradients."""
    return max(1, min(CHUNK, PIXELS // images[0].numel())) if len(images) else CHUNK


def compiled_for_any_size(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that is compiled once, for batches of any size."""
    # torch warns of every bound of a size that it cannot compute, in hundreds of lines.
    logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)
    return torch.compile(function, dynamic=True)


class NotFiniteError(ValueError):
    """The gradient of the model is not finite."""

    def __init__(self) -> None:
        super().__init__("expected a finite gradient of the model, got NaN: look for 0/0, a sqrt at 0 or an overflow")


def copy_on_cpu(model: nn.Module, *, to_float32: bool = False) -> nn.Module:
    """Return a copy of a model on a CPU. It takes no memory of a GPU.

    Args:
        to_float32: convert tensors in half precision.
    """

    def dtype_of(tensor: Tensor) -> torch.dtype:
        return torch.float32 if to_float32 and tensor.dtype in HALF else tensor.dtype

    memo: dict[int, Any] = {}
    for tensor in [*all_tensors(model).values(), *attribute_tensors(model).values()]:
        found = tensor.detach().to("cpu", dtype_of(tensor), copy=True)
        memo[id(tensor)] = nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found
    # TorchScript ignores the memo, so that its copy is converted here.
    return copy.deepcopy(model, memo)._apply(lambda tensor: tensor.to("cpu", dtype_of(tensor)))
