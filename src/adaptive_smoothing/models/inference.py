"""Whether an image fools a model: read in full precision from the model itself, inside the ball and the box."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_images, check_logits, check_two_classes, precision_explained

# Images in one pass of full precision, and values of a pixel in all of them.
CHUNK, PIXELS = 512, 2048 * 3 * 32 * 32


def full_precision() -> AbstractContextManager[None]:
    """Verdicts are given in fp32; attacks may use faster arithmetic and can only lose by it."""
    return float32_as("ieee")


@contextmanager
def float32_as(kind: str) -> Iterator[None]:
    """What a GPU makes of float32: "ieee" is all of it, "tf32" ten of its binary digits, several times as fast."""
    cudnn: Any = torch.backends.cudnn  # its parts are not in torch's type stubs
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
    """The logits a verdict is read from: in full precision, checked to be numbers, of images that are images."""
    check_images(images)
    with (
        torch.no_grad(),
        full_precision(),
        torch.autocast(images.device.type, enabled=False),
        precision_explained(model),
    ):
        logits = model(images)
    check_logits(logits, images)
    check_two_classes(logits)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def fp32_logits_chunked(model: nn.Module, images: Tensor) -> Tensor:
    """The same for any number of images, some at a time."""
    size = max(1, min(CHUNK, PIXELS // images[0].numel())) if len(images) else CHUNK
    return torch.cat([fp32_logits(model, part) for part in images.split(size)])


class NotFiniteError(ValueError):
    """An attack was led to where there are no numbers."""

    def __init__(self) -> None:
        super().__init__(
            "expected a finite gradient from the model, got NaN: look for a 0/0, a sqrt at 0 or an overflow in it"
        )
