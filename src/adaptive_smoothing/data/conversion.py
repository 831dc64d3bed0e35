"""Images in memory as `ImageData`: tensors, arrays, and data sets of torch, torchvision and Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from adaptive_smoothing.data.data_options import class_names
from adaptive_smoothing.data.datasets import ImageData, looks_channels_last
from adaptive_smoothing.data.items import ItemKeys, Levels, chw, is_integer, label_number, stack_images
from adaptive_smoothing.data.photographs import Framing, Size


def from_tensors(
    images: Tensor | np.ndarray,
    labels: Tensor | np.ndarray | Sequence[int],
    *,
    name: str = "data",
    classes: Sequence[str] | None = None,
    index: Tensor | np.ndarray | Sequence[int] | None = None,
    round: bool = False,
) -> ImageData:
    """Return data made from NCHW images in memory: uint8, or floats in [0, 1] at the 256 levels k/255.

    Args:
        classes: names of the classes; by default their numbers.
        index: the position of each image in the official split; by default its position in `images`.
        round: round floats to the nearest level, and warn by how much; by default values between levels are an error.

    Examples:
        >>> ads.from_tensors(torch.zeros(2, 3, 8, 8), [0, 1], name="mine")
        ImageData(mine: 2 x 3 x 8 x 8, 2 classes, on cpu)
    """
    given = _tensor("images", images)
    if given.dim() == 4 and looks_channels_last(given.shape):
        found = f"{tuple(given.shape)}, which looks like (N, H, W, C): pass torch.as_tensor(images).permute(0, 3, 1, 2)"
        raise ValueError(f"expected images of shape (N, C, H, W), got {found}")
    levels = Levels(round)
    pixels = levels(given)
    levels.report(name)
    target = _tensor("labels", labels).to(pixels.device)
    if not is_integer(target):
        raise ValueError(f"expected whole numbers as labels, got {target.dtype}: pass class positions, not scores")
    positions = torch.arange(len(pixels)) if index is None else torch.as_tensor(index)
    count = int(target.max()) + 1 if target.numel() else 0
    names = class_names(classes) if classes is not None else tuple(str(label) for label in range(count))
    known = classes is not None
    return ImageData(pixels, target.long(), names, name, positions.long().to(pixels.device), known)


def _tensor(what: str, values: Any) -> Tensor:
    """Return numbers as a tensor."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"{type(values).__name__} ({error})"
        raise TypeError(f"expected {what} as a tensor or an array of numbers, got {found}: convert them") from error


def from_dataset(
    dataset: Dataset[Any],
    *,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    image: str | None = None,
    label: str | None = None,
    size: Size | None = None,
    resize: int | None = None,
    crop: Size | None = None,
    round: bool = False,
) -> ImageData:
    """Return data made from a data set of (image, label) or of dictionaries, such as those of Hugging Face.

    An image is a PIL image, an HWC or HW array, or a CHW tensor; floats must be in [0, 1]. For a `Subset`, `index`
    refers to the whole dataset.

    Args:
        classes: names of the classes; by default those that the dataset has, else numbers.
        image, label: keys of items that are dictionaries; by default the usual ones, such as `image` and `label`.
        size, resize, crop: the size of PIL images, as in `load_data`.
        round: round floats to the nearest of the 256 levels, and warn by how much.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> ads.from_dataset(TensorDataset(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1])), classes=["cat", "dog"])
        ImageData(TensorDataset: 2 x 3 x 8 x 8, 2 classes, on cpu)
    """
    if isinstance(dataset, DataLoader):
        raise TypeError("expected a dataset, got a DataLoader: pass loader.dataset")
    if isinstance(dataset, dict):
        raise TypeError(f"expected one dataset, got a dictionary of {', '.join(map(str, dataset))}: pass one of them")
    if not isinstance(dataset, Sized):
        raise ValueError(f"expected a dataset with a length, got {type(dataset).__name__}: wrap it in a list first")
    keys, framing, levels = ItemKeys(image, label), Framing(size, resize, crop), Levels(round)
    images, labels = [], []
    for position in range(len(dataset)):
        picture, number = keys.pair(dataset[position])
        images.append(chw(picture, framing, levels))
        labels.append(label_number(number))
    if not images:
        raise ValueError(f"expected at least one item, got an empty {type(dataset).__name__}")
    positions, origin = _origin(dataset)
    name = name or type(origin).__name__
    levels.report(name)
    return from_tensors(
        stack_images(images), labels, name=name, classes=classes or _classes(origin, keys), index=positions
    )


def _classes(dataset: Any, keys: ItemKeys) -> Sequence[str] | None:
    """Return the names of the classes that a data set of torchvision or Hugging Face has, or None."""
    features = getattr(dataset, "features", None)
    if isinstance(features, dict):
        _, label = keys.found_in(features)
        return getattr(features[label], "names", None)
    return getattr(dataset, "classes", None)


def _origin(dataset: Dataset[Any]) -> tuple[list[int], Dataset[Any]]:
    """Return the positions of the items of a (nested) Subset in the whole dataset, and that dataset."""
    if not isinstance(dataset, Subset):
        return list(range(len(cast(Sized, dataset)))), dataset
    positions, origin = _origin(dataset.dataset)
    return [positions[i] for i in dataset.indices], origin
