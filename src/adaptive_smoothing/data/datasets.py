"""Labelled images in memory, and `load`, which finds them by name or path.

Images are kept as uint8, so that a whole data set fits on the device (CIFAR-10: 184 MB), and converted to floats in
[0, 1] one batch at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.data.data_options import DataOptions, class_list, split_name
from adaptive_smoothing.data.devices import check_device
from adaptive_smoothing.data.find_source import find_source, read_split
from adaptive_smoothing.data.items import is_integer
from adaptive_smoothing.data.photographs import Size
from adaptive_smoothing.data.sources import Builtin
from adaptive_smoothing.settings.checks import check_count, suggestion
from adaptive_smoothing.version import cache_folder


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images (uint8, NCHW), labels, names of the classes, and the position of each image in the official split.

    `load_data`, `from_dataset` and `from_tensors` make it.

    Args:
        images: uint8, NCHW.
        labels: positions in `classes`.
        classes: names of the classes.
        name: the name of the data, for results.
        index: the position of each image in the official split. It stays with an image through every selection, so that
            a result can be traced to its image.
        classes_known: False if the classes are numbers that were counted from the labels: there may be more classes.

    Examples:
        >>> some = ads.load_data("builtin", "test").take([2, 0])
        >>> len(some), some.num_classes, some.index.tolist()
        (2, 10, [2, 0])
        >>> some.floats().shape
        torch.Size([2, 3, 32, 32])
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    index: Tensor
    classes_known: bool = True

    def __post_init__(self) -> None:
        images, classes = self.images, len(self.classes)
        if images.dtype != torch.uint8 or images.dim() != 4:
            found = f"{images.dtype} of shape {tuple(images.shape)}: from_tensors and from_dataset convert floats"
            raise ValueError(f"expected uint8 images of shape (count, channels, height, width), got {found}")
        for what, tensor in (("labels", self.labels), ("index", self.index)):
            if tensor.dtype != torch.int64 or tensor.shape != images.shape[:1] or tensor.device != images.device:
                found = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
                raise ValueError(f"expected {what} as {len(images)} int64 numbers on {images.device}, got {found}")
        if len(images) and not 0 <= self.labels.min() <= self.labels.max() < classes:
            found = f"{self.labels.min().item()} to {self.labels.max().item()}: name every class in `classes`"
            raise ValueError(f"expected labels from 0 to {classes - 1} for {classes} classes, got {found}")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape))
        return f"ImageData({self.name}: {shape}, {self.num_classes} classes, on {self.images.device})"

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    def take(self, which: int | slice | Sequence[int] | np.ndarray | Tensor) -> ImageData:
        """Return a selection of the images: the first `which`, those at some positions in that order, or a mask."""
        rows = self._positions(which)
        return replace(self, images=self.images[rows], labels=self.labels[rows], index=self.index[rows])

    def _positions(self, which: int | slice | Sequence[int] | np.ndarray | Tensor) -> slice | Tensor:
        if isinstance(which, slice):
            return which
        if isinstance(which, int | np.integer):
            if not 0 <= which <= len(self):
                raise ValueError(f"expected a count from 0 to {len(self)} for {self.name}, got {which}")
            return slice(int(which))
        wanted = torch.as_tensor(which, device=self.images.device)
        if wanted.dtype == torch.bool and wanted.shape == self.labels.shape:
            return wanted.nonzero().flatten()
        # On a GPU a position out of range would end the process.
        inside = wanted.numel() == 0 or 0 <= wanted.min() <= wanted.max() < len(self)
        if wanted.numel() and not (wanted.dim() == 1 and is_integer(wanted) and inside):
            expected = f"a count, a mask of {len(self)} or positions from 0 to {len(self) - 1}"
            raise ValueError(f"expected {expected}, got {which}")
        return wanted.long().flatten()

    def to(self, device: torch.device | str) -> ImageData:
        """Return the data with all tensors on `device`."""
        check_device(device)
        images, labels, index = (tensor.to(device) for tensor in (self.images, self.labels, self.index))
        return replace(self, images=images, labels=labels, index=index)

    def floats(self) -> Tensor:
        """Return all images as float32 in [0, 1], which needs four times the memory."""
        return to_floats(self.images)

    def fingerprint(self) -> str:
        """Return the digest of the images, labels and positions."""
        digest = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        for tensor in (self.images, self.labels, self.index):
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def to_floats(images: Tensor) -> Tensor:
    """Return uint8 levels as float32 in [0, 1], with the same bits on every device."""
    # CUDA multiplies by the reciprocal of a Python number, which differs from the division on a CPU by one bit.
    return images.float().div_(torch.full((), 255.0, device=images.device))


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Return whether four-dimensional images are probably (N, H, W, C)."""
    _, channels, rows, columns = shape
    return columns in (1, 3) and channels not in (1, 3) and rows > columns


def check_data(data: ImageData) -> None:
    """Raise an error unless `data` is an ImageData with at least one image."""
    if not isinstance(data, ImageData):
        hint = "ads.from_dataset takes a torch data set, ads.from_tensors images and labels"
        raise TypeError(f"expected ImageData, got {type(data).__name__}: {hint}")
    if not len(data):
        raise ValueError(f"expected at least one image, got an empty {data.name}")


def device_of(model: nn.Module, data: ImageData, device: str | torch.device | None = None) -> torch.device:
    """Return the given device, or that of the model, or that of the images if the model has no parameters."""
    if device is not None:
        check_device(device)
    return torch.device(device or next(iter(model.parameters()), data.images).device)


def load(
    name_or_path: str | Path,
    split: str = "test",
    *,
    root: str | Path | None = None,
    download: bool = False,
    images: int | None = None,
    size: Size | None = None,
    resize: int | None = None,
    crop: Size | None = None,
    classes: Sequence[str] | str | Path | None = None,
    round: bool = False,
) -> ImageData:
    """Return labelled images by name (`builtin`, `cifar10`, `cifar100`, `hf:NAME`) or by path.

    Args:
        name_or_path: a path is a `.npz` file, an official CIFAR archive or its unpacked folder, or a folder with one
            subfolder of images per class, with or without `train`, `val` and `test` above them. Options may follow a
            question mark: size, resize, crop and classes; for Hugging Face also config, split, image, label,
            revision and round.
        split: `train`, `val` or `test`. If the official data has no `val`, a tenth of `train` is held out for it, the
            same images on every machine. Images without splits are available as `test` or `all` only.
        root: folder of the named data sets; by default $ADAPTIVE_SMOOTHING_DATA, else the cache.
        download: download a named data set that is missing.
        images: read this many images only: the first, or evenly spaced ones of image files, which are sorted by class.
        resize, crop: for photographs: the length of the shorter edge after resizing, and the size of the centre that is
            cut out; crop=224 resizes to 256.
        size: for photographs: the size after resizing without keeping proportions.
        classes: the names of all classes in the order of the model, or a file with one name per line. By default
            classes are numbered in the order of the data, which is alphabetical for folders.
        round: for Hugging Face: round floats to the nearest of the 256 levels, and warn by how much.

    Examples:
        >>> ads.load_data("builtin", "val", images=20)
        ImageData(builtin/val: 20 x 3 x 32 x 32, 10 classes, on cpu)
        >>> ads.load_data("photos", crop=224)  # doctest: +SKIP
        >>> ads.load_data("photos?crop=224&classes=imagenet.txt")  # doctest: +SKIP
        >>> ads.load_data("hf:cifar100?image=img&label=coarse_label")  # doctest: +SKIP
    """
    if images is not None:
        check_count(images=images)
    folder = Path(root).expanduser() if root else data_folder()
    given = DataOptions(classes=classes, size=size, resize=resize, crop=crop, round=round or None)
    name, options = split_name(name_or_path, given)
    source = find_source(name, folder, download, options)
    part = read_split(source, split)
    if images is not None and not isinstance(part.images, np.ndarray):
        part = part.take(_evenly_spaced(images, len(part.labels)))
    pixels = torch.from_numpy(np.ascontiguousarray(part.images))
    labels, index = (torch.from_numpy(array) for array in (part.labels, part.index))
    data = ImageData(pixels, labels, part.classes, f"{source.name}/{split}", index, part.classes_known)
    if isinstance(source, Builtin) and (found := data.fingerprint()) != (wanted := source.fingerprint(split)):
        hint = "the installed package is damaged; install it again"
        raise ValueError(f"expected the built-in {split} images with sha256 {wanted}, got {found}: {hint}")
    if options.classes is not None:
        data = in_order(data, class_list(options.classes, Path(name)))
    return data.take(slice(images))


def data_folder() -> Path:
    """Return the default folder of the named data sets."""
    named = os.environ.get("ADAPTIVE_SMOOTHING_DATA")
    return Path(named).expanduser() if named else cache_folder()


def _evenly_spaced(wanted: int, count: int) -> np.ndarray:
    """Return `wanted` positions, or all of them if there are fewer."""
    wanted = min(wanted, count)
    return np.arange(wanted) * count // wanted


def in_order(data: ImageData, classes: tuple[str, ...]) -> ImageData:
    """Return the data with labels that are positions in `classes`, the classes of a model in its order."""
    for name in data.classes:
        if name not in classes:
            hint = f"rename the folder, or add the class; {suggestion(name, classes)}"
            raise ValueError(
                f"expected the {len(classes)} classes to include those of {data.name}, got {name!r}: {hint}"
            )
    positions = torch.tensor([classes.index(name) for name in data.classes], device=data.labels.device)
    return replace(data, labels=positions[data.labels], classes=classes, classes_known=True)
