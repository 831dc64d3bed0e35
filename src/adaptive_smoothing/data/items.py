"""Items of a data set, such as (image, label) or {"image": ..., "label": ...}, as uint8 images and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.data.photographs import Framing, different_sizes, pixels_of, warn_memory
from adaptive_smoothing.settings.checks import suggestion, warn_user

# The usual names of the image and of the label in an item that is a dictionary. An earlier name is preferred.
IMAGE_KEYS = ("image", "img", "pixel_values", "picture", "images")
LABEL_KEYS = ("label", "labels", "fine_label", "target", "class", "cls")
# Images that are converted at a time, so that the copy in double precision stays small.
CHUNK = 256


@dataclass(frozen=True)
class ItemKeys:
    """The names of the image and of the label in items that are dictionaries; None: the usual names."""

    image: str | None = None
    label: str | None = None

    def found_in(self, keys: Iterable[str]) -> tuple[str, str]:
        """Return the names of the image and of the label in these keys, or raise an error."""
        keys = list(keys)
        return _find_key("image", self.image, keys, IMAGE_KEYS), _find_key("label", self.label, keys, LABEL_KEYS)

    def pair(self, item: Any) -> tuple[Any, Any]:
        """Return the image and the label of an item; anything else in it is left out."""
        if isinstance(item, Mapping):
            image, label = self.found_in(item)
            return item[image], item[label]
        if not isinstance(item, tuple | list) or len(item) < 2:
            what = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sized) else type(item).__name__
            hint = "return both from the dataset's __getitem__, or pass images and labels to from_tensors"
            raise ValueError(f"expected items (image, label), got a {what}: {hint}")
        return item[0], item[1]


def _find_key(what: str, given: str | None, keys: list[str], usual: tuple[str, ...]) -> str:
    if given is not None and given not in keys:
        raise ValueError(f"expected {what}= to be a key of the items, got {given!r}: {suggestion(given, keys)}")
    found = given or next((key for key in usual if key in keys), None)
    if found is None:
        hint = f"pass {what}=, the key of the {what} (?{what}=KEY in a name)"
        raise ValueError(f"expected a key such as {', '.join(usual[:3])} in the items, got {', '.join(keys)}: {hint}")
    return found


@dataclass
class Levels:
    """Converts floats in [0, 1] to the 256 levels k/255. Values between them are an error, unless `round` is true."""

    round: bool = False
    largest: float = field(default=0.0, init=False)  # the largest change so far, in levels

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 levels."""
        if images.dtype == torch.uint8:
            return images
        if not images.is_floating_point():
            raise ValueError(f"expected uint8 images or floats in [0, 1], got {images.dtype}: convert to uint8")
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):
            low, high = images.min().item(), images.max().item()
            raise ValueError(f"expected images in [0, 1], got [{low:.3g}, {high:.3g}]: {range_hint(low, high)}")
        return torch.cat([self._levels(part) for part in images.split(CHUNK)]) if len(images) else images.byte()

    def _levels(self, images: Tensor) -> Tensor:
        scaled = images.double() * 255
        levels = scaled.round()
        change = (scaled - levels).abs()
        # In float32 the error is at most 1e-5 of a level.
        if (far := change > 1e-3).any():
            self.largest = max(self.largest, change.max().item())
            if not self.round:
                found = f"{far.double().mean():.1%} of the values between levels, such as {images[far][0]:.6g}"
                hint = "pass round=True (--data 'hf:NAME?round=1'), or resize and filter them inside the model"
                raise ValueError(f"expected images made of the 256 levels k/255, got {found}: {hint}")
        return levels.to(torch.uint8)

    def report(self, name: str) -> None:
        """Warn if values were rounded, and say by how much."""
        if self.largest:
            found = f"by at most {self.largest / 255:.2g} ({self.largest:.2f} of the distance between two levels)"
            warn_user(f"the images of {name} were rounded to the 256 levels k/255, {found}")


def range_hint(low: float, high: float) -> str:
    """Return what to do about images with values outside [0, 1]."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "find the step of the data pipeline that produces NaN or an infinite value"
    if low >= 0 and 2 < high <= 255:
        return "they look like bytes; divide them by 255"
    return "normalisation belongs inside the model; see ads.wrap"


def label_number(label: Any) -> int:
    """Return a label of any kind as a number, or raise an error if it is not one whole number."""
    try:
        number = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected a whole number as label, got {label!r}: pass the position of its class") from error
    if number.numel() != 1 or not is_integer(number):
        hint = "for one-hot labels pass label.argmax()" if number.numel() > 1 else "pass the position of its class"
        raise ValueError(f"expected a whole number as label, got {number.dtype} of shape {tuple(number.shape)}: {hint}")
    return int(number)


def is_integer(tensor: Tensor) -> bool:
    """Return whether a tensor has an integer dtype. Booleans do not count."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def chw(image: Any, framing: Framing, levels: Callable[[Tensor], Tensor]) -> Tensor:
    """Return one image as a CHW tensor of uint8 levels. Gray images keep one channel."""
    if framing:
        image = _as_photograph(image)
    if isinstance(image, Tensor):
        tensor = image
    elif isinstance(image, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(image).transpose(2, 0, 1)))
    elif hasattr(image, "convert"):
        tensor = torch.from_numpy(pixels_of(image, framing, gray=True).copy())
    else:
        raise ValueError(f"expected a PIL image, an array or a tensor, got {type(image).__name__}")
    if tensor.dim() != 3 or tensor.shape[0] > 4:
        found = f"a {type(image).__name__} of shape {tuple(image.shape)}: permute it"
        raise ValueError(f"expected a CHW tensor or an HWC array with at most 4 channels, got {found}")
    return levels(tensor)


def _as_photograph(image: Any) -> Any:
    """Return an image that can be resized and cropped."""
    from PIL import Image

    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return Image.fromarray(image)
    if not hasattr(image, "convert"):
        hint = "resize and crop in the transform of the data set"
        raise ValueError(f"expected PIL images or uint8 arrays to resize or crop, got {type(image).__name__}: {hint}")
    return image


def stack_images(images: list[Tensor]) -> Tensor:
    """Return images of one size as one tensor, which takes their place. Gray ones become RGB if others are RGB."""
    sizes = sorted({tuple(image.shape[1:]) for image in images})
    channels = sorted({image.shape[0] for image in images})
    if len(sizes) != 1:
        raise ValueError(different_sizes(" and ".join(f"{height} x {width}" for height, width in sizes[:3])))
    if channels not in ([channels[-1]], [1, 3]):
        raise ValueError(f"expected images with the same channels, got {channels}: convert them to RGB")
    stacked = torch.empty(len(images), channels[-1], *sizes[0], dtype=torch.uint8)
    warn_memory(stacked.numpy())
    for row in reversed(range(len(images))):
        stacked[row] = images.pop()  # so that the images are not in memory twice
    return stacked
