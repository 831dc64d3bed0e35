"""Images in memory as `ImageData`: tensors, arrays, and data sets of torch and torchvision."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from adaptive_smoothing.data.datasets import ImageData, is_integer, looks_channels_last
from adaptive_smoothing.data.sources import pixels_of


def from_tensors(
    images: Tensor | np.ndarray,
    labels: Tensor | np.ndarray | Sequence[int],
    *,
    name: str = "data",
    classes: Sequence[str] | None = None,
    index: Tensor | np.ndarray | Sequence[int] | None = None,
) -> ImageData:
    """Return data made from NCHW images in memory: uint8, or floats in [0, 1] at the 256 levels k/255.

    Args:
        classes: names of the classes; by default their numbers.
        index: the position of each image in the official split; by default its position in `images`.
    """
    given = torch.as_tensor(images)
    if given.dim() == 4 and looks_channels_last(given.shape):
        found = f"{tuple(given.shape)}, which looks like (N, H, W, C): pass torch.as_tensor(images).permute(0, 3, 1, 2)"
        raise ValueError(f"expected images of shape (N, C, H, W), got {found}")
    pixels = to_levels(given)
    target = torch.as_tensor(labels, device=pixels.device)
    if not is_integer(target):
        raise ValueError(f"expected whole numbers as labels, got {target.dtype}: pass class positions, not scores")
    positions = torch.arange(len(pixels)) if index is None else torch.as_tensor(index)
    count = int(target.max()) + 1 if target.numel() else 0
    names = tuple(classes) if classes is not None else tuple(str(label) for label in range(count))
    return ImageData(pixels, target.long(), names, name, positions.long().to(pixels.device))


def from_dataset(dataset: Dataset[Any], *, name: str | None = None, classes: Sequence[str] | None = None) -> ImageData:
    """Return data made from a torch Dataset of (image, label). For a `Subset`, `index` refers to the whole dataset.

    An image is a PIL image, an HWC or HW array, or a CHW tensor; floats must be in [0, 1].
    """
    if isinstance(dataset, DataLoader):
        raise TypeError("expected a dataset, got a DataLoader: pass loader.dataset")
    if not isinstance(dataset, Sized):
        raise ValueError(f"expected a dataset with a length, got {type(dataset).__name__}: wrap it in a list first")
    pairs = [_pair(dataset[i]) for i in range(len(dataset))]
    images = [_chw(image) for image, _ in pairs]
    if len(shapes := sorted({tuple(image.shape) for image in images})) != 1:
        raise ValueError(f"expected images of one shape, got {shapes}: resize them in the dataset's transform")
    positions, origin = _origin(dataset)
    return from_tensors(
        torch.stack(images),
        [_label(label) for _, label in pairs],
        name=name or type(origin).__name__,
        classes=classes or getattr(origin, "classes", None),
        index=positions,
    )


def _origin(dataset: Dataset[Any]) -> tuple[list[int], Dataset[Any]]:
    """Return the positions of the items of a (nested) Subset in the whole dataset, and that dataset."""
    if not isinstance(dataset, Subset):
        return list(range(len(cast(Sized, dataset)))), dataset
    positions, origin = _origin(dataset.dataset)
    return [positions[i] for i in dataset.indices], origin


def _pair(item: Any) -> tuple[Any, Any]:
    """Return the image and the label of an item; anything after them is left out."""
    if not isinstance(item, tuple | list) or len(item) < 2:
        what = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sized) else type(item).__name__
        hint = "return both from the dataset's __getitem__, or pass images and labels to from_tensors"
        raise ValueError(f"expected items (image, label), got a {what}: {hint}")
    return item[0], item[1]


def _label(label: Any) -> int:
    """Return a label of any kind as a number, or raise an error if it is not one whole number."""
    try:
        number = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected a whole number as label, got {label!r}: pass the position of its class") from error
    if number.numel() != 1 or not is_integer(number):
        hint = "for one-hot labels pass label.argmax()" if number.numel() > 1 else "pass the position of its class"
        raise ValueError(f"expected a whole number as label, got {number.dtype} of shape {tuple(number.shape)}: {hint}")
    return int(number)


def _chw(image: Any) -> Tensor:
    """Return one image as a CHW tensor of uint8 levels."""
    if isinstance(image, Tensor):
        tensor = image
    elif isinstance(image, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(image).transpose(2, 0, 1)))
    elif hasattr(image, "convert"):
        tensor = torch.from_numpy(pixels_of(image, gray=True).copy())
    else:
        raise ValueError(f"expected a PIL image, an array or a tensor, got {type(image).__name__}")
    if tensor.dim() != 3 or tensor.shape[0] > 4:
        found = f"a {type(image).__name__} of shape {tuple(image.shape)}: permute it"
        raise ValueError(f"expected a CHW tensor or an HWC array with at most 4 channels, got {found}")
    return to_levels(tensor)


def to_levels(images: Tensor) -> Tensor:
    """Return floats in [0, 1] as uint8 levels, or raise an error if that would change the images."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ValueError(f"expected uint8 images or floats in [0, 1], got {images.dtype}: convert to uint8")
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):
        found = f"[{images.min():.3g}, {images.max():.3g}]: normalisation belongs inside the model; see ads.wrap"
        raise ValueError(f"expected images in [0, 1], got {found}")
    scaled = images.double() * 255
    levels = scaled.round()
    # In float32 the error is at most 1e-5 of a level.
    if (far := (scaled - levels).abs() > 1e-3).any():
        found = f"{far.double().mean():.1%} of the values between levels, such as {images[far][0]:.6g}"
        hint = "images are stored as uint8; resize or filter them before they become floats, or inside the model"
        raise ValueError(f"expected images made of the 256 levels k/255, got {found}: {hint}")
    return levels.to(torch.uint8)
