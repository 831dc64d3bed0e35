"""The contract of a classifier: a module from NCHW images in [0, 1] to logits.

The form of a tensor (type, dtype, shape) is checked in every forward pass: this costs nothing. Its values (range, NaN)
are checked where images enter the library, because reading them waits for the device. A forward pass checks values only
where that is possible and cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from adaptive_smoothing.data.datasets import looks_channels_last
from adaptive_smoothing.data.items import is_integer, range_hint

# Resizing and colour conversion round, so that values may leave [0, 1] by this much.
SLACK = 1e-6

Module = TypeVar("Module", bound=nn.Module)

# Whether the images of the current forward pass need no check of values: see `trusted_images`.
_TRUSTED: ContextVar[bool] = ContextVar("adaptive_smoothing_images_trusted", default=False)


def check_images(images: Tensor) -> None:
    """Check the form and the values of images. Entry points of the library call this once per batch."""
    check_image_form(images)
    check_image_values(images)


def check_image_form(images: Tensor) -> None:
    """Check that images are a floating-point NCHW tensor, without reading values."""
    if not isinstance(images, Tensor):
        hint = "convert them, for example with torch.as_tensor, to floats in [0, 1] of shape (N, C, H, W)"
        raise TypeError(f"expected images as a tensor, got {type(images).__name__}: {hint}")
    if not images.is_floating_point():
        hint = "for bytes from 0 to 255 pass images.float() / 255"
        raise TypeError(f"expected images as floats in [0, 1], got {images.dtype}: {hint}")
    shape = tuple(images.shape)
    if len(shape) != 4:
        hint = "add the batch dimension with images.unsqueeze(0)" if len(shape) == 3 else "reshape them"
        raise ValueError(f"expected images of shape (N, C, H, W), got {shape}: {hint}")
    if looks_channels_last(shape):
        hint = "which looks like (N, H, W, C): pass images.permute(0, 3, 1, 2)"
        raise ValueError(f"expected images of shape (N, C, H, W), got {shape}, {hint}")


def check_image_values(images: Tensor) -> None:
    """Check that images are finite and in [0, 1]. Waits for the device."""
    if images.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(images.detach())).tolist()
    if low >= -SLACK and high <= 1 + SLACK:
        return
    raise ValueError(f"expected images in [0, 1], got [{low:.7g}, {high:.7g}]: {range_hint(low, high)}")


def guard_images(images: Tensor) -> None:
    """Check images at the start of a forward pass: always the form, and the values if they can be read.

    The values of images that require a gradient are not read: an attack checks its images when it starts, and must not
    wait for the device at every step. Compiled graphs, CUDA graphs, vmap and fake tensors have no values to read.
    """
    check_image_form(images)
    if can_read_values(images):
        check_image_values(images)


def can_read_values(images: Tensor) -> bool:
    """Return whether a forward pass may read the values of these images; see `guard_images`."""
    if torch.compiler.is_compiling() or images.requires_grad or _TRUSTED.get():
        return False
    # Reading a value would invalidate the CUDA graph that is being captured.
    if images.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    try:
        images.detach().flatten()[:1].tolist()
    except RuntimeError:  # vmap, fake and meta tensors: torch has no public way to ask
        return False
    return True


def trusted_images() -> AbstractContextManager[None]:
    """Return a context without value checks, for images that were checked before or leave [0, 1] on purpose."""
    # A context variable cannot be set in a compiled graph, where no guard reads values anyway.
    return nullcontext() if torch.compiler.is_compiling() else _trusted()


@contextmanager
def _trusted() -> Iterator[None]:
    token = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def check_labels(labels: Tensor, images: Tensor, num_classes: int | None = None) -> None:
    """Check that each image has an integer label in [0, num_classes), or >= 0 by default. Waits for the device."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"expected labels as a tensor, got {type(labels).__name__}: pass torch.as_tensor(labels)")
    if not is_integer(labels):
        hint = "for one-hot rows pass labels.argmax(1)" if labels.dim() == 2 else "pass labels.long()"
        raise TypeError(f"expected labels as integers, got {labels.dtype}: {hint}")
    if labels.shape != images.shape[:1]:
        hint = "images and labels must come from the same batch"
        raise ValueError(f"expected one label per image, shape ({len(images)},), got {tuple(labels.shape)}: {hint}")
    if labels.device != images.device:
        hint = f"where the images are, got {labels.device}: pass labels.to(images.device)"
        raise ValueError(f"expected labels on {images.device}, {hint}")
    if labels.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or (num_classes is not None and high >= num_classes):
        last = "" if num_classes is None else f" to {num_classes - 1} for {num_classes} classes"
        hint = "check that labels start at 0 and belong to this model's data set"
        raise ValueError(f"expected labels from 0{last}, got {low} to {high}: {hint}")


def check_logits(logits: Tensor, images: Tensor) -> None:
    """Check that logits are one row of finite floats per image. Waits for the device."""
    check_logit_form(logits, images)
    finite = logits.detach().isfinite().all(1)
    if not finite.all():
        kind = "NaN" if logits.isnan().any() else "infinite values"
        found = f"{kind} for {int((~finite).sum())} of {len(finite)} images"
        hint = "a log of zero, a division by zero or an alpha module that leaves [0, 1], or run the model in float32"
        raise ValueError(f"expected finite logits, got {found}: look for {hint}")


def check_logit_form(logits: Tensor, images: Tensor) -> None:
    """Check that logits are a floating-point tensor with one row per image, without reading values."""
    if not isinstance(logits, Tensor):
        raise TypeError(_structured_message(logits, images))
    if not logits.is_floating_point():
        raise TypeError(f"expected logits as floats, got {logits.dtype}: return the scores, not the predicted class")
    if logits.dim() != 2 or logits.shape[0] != images.shape[0]:
        expected, found = f"shape ({len(images)}, classes) for {len(images)} images", tuple(logits.shape)
        hint = "return one row of scores per image; to reshape or select them, pass output=<function> to ads.wrap"
        raise ValueError(f"expected logits of {expected}, got {found}: {hint}")


def _structured_message(output: object, images: Tensor) -> str:
    """Return the error for a model whose output is not a tensor; it suggests the field that holds the logits."""
    fields = output_fields(output)
    found = f"expected logits as a tensor, got {type(output).__name__}"
    if fields:
        found += f" with {', '.join(f'{key}: {_describe(value)}' for key, value in fields.items())}"
    likely = ["logits"] if "logits" in fields else [key for key, value in fields.items() if _has_rows(value, images)]
    if not likely:
        return f"{found}: pass output=<name, index or function that picks the logits> to ads.wrap"
    return f"{found}: {likely[0]!r} probably holds the logits; pass output={likely[0]!r} to ads.wrap"


def output_fields(output: object) -> dict[Any, object]:
    """Return the fields of a structured output by name, or by position if it is a plain tuple or list."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple) and hasattr(output, "_asdict"):
        return dict(output._asdict())
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    return dict(getattr(output, "__dict__", {}))


def _describe(value: object) -> str:
    return f"tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _has_rows(value: object, images: Tensor) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2 and len(value) == len(images)


def check_two_classes(logits: Tensor) -> None:
    """Raise an error for logits of a single class."""
    if logits.shape[1] < 2:
        hint = "for a binary model pass ads.wrap output=lambda z: torch.cat([-z, z], 1) / 2"
        raise ValueError(f"expected at least two classes, got one logit per image: {hint}")


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether all rows are non-negative and sum to 1. Waits for the device."""
    return bool(outputs.numel() and (outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < 1e-3).all())


def check_not_probabilities(outputs: Tensor) -> None:
    """Raise an error for rows that are probabilities. Waits for the device."""
    if are_probabilities(outputs):
        raise ValueError(
            "expected logits, got probabilities (non-negative rows that sum to 1): remove the final softmax, "
            "or pass output=lambda p: p.clamp_min(1e-30).log() to ads.wrap; gradients of probabilities vanish"
        )


def with_zero_gradient(logits: Tensor, images: Tensor) -> Tensor:
    """Return the logits with a gradient of zero with respect to the images: without one, autograd raises an error."""
    anchor = images.flatten(1)[:, :1].to(logits.dtype)
    return torch.where(torch.ones_like(logits, dtype=torch.bool), logits, anchor)


def freeze(model: Module) -> Module:
    """Put a model in eval mode without gradients of its weights, which attacks do not need. Returns the model."""
    return model.eval().requires_grad_(False)


@contextmanager
def frozen(*models: nn.Module) -> Iterator[None]:
    """Switch off the gradients of all weights: attacks need those of images only, which halves the cost."""
    trainable = [weight for model in models for weight in model.parameters() if weight.requires_grad]
    for weight in trainable:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trainable:
            weight.requires_grad_(True)


def check_eval(model: nn.Module) -> None:
    """Raise an error for a model with a layer in train mode that depends on the mode: batch norm, dropout, ..."""
    if not isinstance(model, nn.Module):
        hint = "load a model by name with ads.load_model, or put the function in a module"
        raise TypeError(f"expected a torch module, got {type(model).__name__}: {hint}")
    for name, module in model.named_modules():
        if module.training and _depends_on_mode(module):
            where = f"its layer {name!r} ({type(module).__name__})" if name else type(module).__name__
            hint = "call model.eval() first, otherwise predictions depend on chance or on the rest of the batch"
            raise ValueError(f"expected a model in eval mode, got {where} in train mode: {hint}")


def _depends_on_mode(module: nn.Module) -> bool:
    """Return whether a forward method reads `self.training`, which also finds custom layers."""
    if getattr(module, "p", None) == 0 or getattr(module, "drop_prob", None) == 0:
        return False
    classes = type(module).__mro__[: type(module).__mro__.index(nn.Module)]
    methods = [method for cls in classes for name, method in vars(cls).items() if "forward" in name]
    return any(isinstance(method, FunctionType) and "training" in method.__code__.co_names for method in methods)
