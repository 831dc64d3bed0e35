"""Labelled images in memory, and `load`, which finds them by name or path.

Images are kept as uint8, so that a whole data set fits on the device (CIFAR-10: 184 MB), and converted to floats in
[0, 1] one batch at a time.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from adaptive_smoothing.data import cifar
from adaptive_smoothing.data.sources import Builtin, ImageFolder, NpzFile, Part, Source, pixels_of
from adaptive_smoothing.noise import keyed_seed

NAMES = ("builtin", *cifar.LAYOUTS)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images (uint8, NCHW), labels, names of the classes, and the position of each image in the official split.

    `index` stays with an image through every selection, so that a result can be traced to its image.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    index: Tensor

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
        return len(self.classes)

    def take(self, which: int | slice | Sequence[int] | np.ndarray | Tensor) -> ImageData:
        """Return the first `which` images, or those at the given positions in that order, or under a mask."""
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
        if wanted.numel() and not (wanted.dim() == 1 and _is_whole(wanted) and inside):
            expected = f"a count, a mask of {len(self)} or positions from 0 to {len(self) - 1}"
            raise ValueError(f"expected {expected}, got {which}")
        return wanted.long().flatten()

    def to(self, device: torch.device | str) -> ImageData:
        """Return the data with all tensors on `device`."""
        images, labels, index = (tensor.to(device) for tensor in (self.images, self.labels, self.index))
        return replace(self, images=images, labels=labels, index=index)

    def floats(self) -> Tensor:
        """Return all images as float32 in [0, 1], which needs four times the memory."""
        return to_floats(self.images)

    def fingerprint(self) -> str:
        """Return a sha256 of the images, labels and positions."""
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


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def load(
    name_or_path: str | Path,
    split: str = "test",
    *,
    root: str | Path | None = None,
    download: bool = False,
    size: int | tuple[int, int] | None = None,
) -> ImageData:
    """Return labelled images by name (`builtin`, `cifar10`, `cifar100`) or by path.

    Args:
        name_or_path: a path is a `.npz` file, an official CIFAR archive or its unpacked folder, or a folder with one
            subfolder of images per class, with or without `train`, `val` and `test` above them.
        split: `train`, `val` or `test`. If the official data has no `val`, a tenth of `train` is held out for it, the
            same images on every machine. Images without splits are available as `test` or `all` only.
        root: folder of the named data sets; by default $ADAPTIVE_SMOOTHING_DATA, else ~/.cache/adaptive_smoothing.
        download: download a named data set that is missing.
        size: size of the images of a folder after resizing.
    """
    folder = Path(root or os.environ.get("ADAPTIVE_SMOOTHING_DATA") or "~/.cache/adaptive_smoothing").expanduser()
    source = _open(name_or_path, folder, download, (size, size) if isinstance(size, int) else size)
    part = _select(source, split)
    images, labels, index = (torch.from_numpy(array) for array in (part.images, part.labels, part.index))
    data = ImageData(images, labels, part.classes, f"{source.name}/{split}", index)
    if isinstance(source, Builtin) and (found := data.fingerprint()) != (wanted := source.fingerprint(split)):
        hint = "the installed package is damaged; install it again"
        raise ValueError(f"expected the built-in {split} images with sha256 {wanted}, got {found}: {hint}")
    return data


def _open(name_or_path: str | Path, root: Path, download: bool, size: tuple[int, int] | None) -> Source:
    if name_or_path == "builtin":
        source: Source = Builtin()
    elif isinstance(name_or_path, str) and name_or_path in cifar.LAYOUTS:
        source = _open_cifar(cifar.LAYOUTS[name_or_path], root, download)
    else:
        source = _open_path(Path(name_or_path).expanduser(), size)
    if size is not None and not isinstance(source, ImageFolder):
        hint = "resize in the first layers of the model instead"
        raise ValueError(f"expected size= with a folder of images only, got it with {name_or_path}: {hint}")
    return source


def _open_cifar(layout: cifar.Layout, root: Path, download: bool) -> Source:
    packed, archive, folder = root / f"{layout.name}.npz", root / layout.file, root / layout.folder
    if packed.is_file():
        return NpzFile(packed)
    if not archive.is_file() and (unpacked := cifar.open_folder(folder)):
        return unpacked
    if not archive.is_file() and not download:
        raise FileNotFoundError(
            f"expected {layout.name} in {root}, found none of {packed.name}, {archive.name}, {folder.name}/. "
            f"Pass download=True (--download) to download {layout.megabytes} MB from {layout.url}, or put that file "
            f"into {root}, or set ADAPTIVE_SMOOTHING_DATA or root= (--data-root) to its folder, or load it by its "
            "path. The data set 'builtin' needs no download."
        )
    source = cifar.open_archive(archive if archive.is_file() else cifar.download(layout, root))
    if source.layout is not layout:
        raise ValueError(f"expected {layout.file} at {archive}, got {source.layout.file}: rename it")
    return source


def _open_path(path: Path, size: tuple[int, int] | None) -> Source:
    if path.is_dir():
        return cifar.open_folder(path) or ImageFolder(path, size)
    if path.is_file():
        return cifar.open_archive(path) if path.name.endswith((".tar.gz", ".tgz")) else NpzFile(path)
    near = difflib.get_close_matches(str(path).lower(), NAMES, n=1)
    raise FileNotFoundError(
        f"expected one of {', '.join(NAMES)}, or a path to a .npz file, a CIFAR archive or an image folder, "
        f"got {str(path)!r}, which does not exist" + (f": did you mean {near[0]!r}?" if near else "")
    )


def _select(source: Source, split: str) -> Part:
    held = source.splits
    if held == ("all",) and split in ("all", "test"):
        return source.read("all")
    if "train" in held and "val" not in held and split in ("train", "val"):
        part = source.read("train")
        chosen = validation_positions(len(part.labels))
        if split == "train":
            chosen = np.setdiff1d(np.arange(len(part.labels)), chosen)
        return Part(part.images[chosen], part.labels[chosen], part.classes, part.index[chosen])
    if split in held:
        return source.read(split)
    offered = ", ".join(sorted({"train", "val", *held} if "train" in held else held))
    offer = f"it has {offered}; validation images are held out from every training"
    if held == ("all",):
        offer = "its images have no splits: load them as 'test' or 'all', not for training or tuning"
    raise ValueError(f"expected one of the splits of {source.name}, got {split!r}: {offer}")


@lru_cache(maxsize=4)
def validation_positions(count: int) -> np.ndarray:
    """Return the tenth of `count` training images that is for validation, in an order that is the same everywhere."""
    order = sorted(range(count), key=lambda position: (keyed_seed(0, "validation split", position), position))
    positions = np.array(order[: max(1, count // 10)], np.int64)
    positions.flags.writeable = False  # the cache returns this array itself
    return positions


def from_tensors(
    images: Tensor | np.ndarray,
    labels: Tensor | np.ndarray | Sequence[int],
    *,
    name: str = "data",
    classes: Sequence[str] | None = None,
    index: Tensor | np.ndarray | Sequence[int] | None = None,
) -> ImageData:
    """Return data made from NCHW images in memory: uint8, or floats in [0, 1] at the 256 levels k/255."""
    given = torch.as_tensor(images)
    if given.dim() == 4 and looks_channels_last(given.shape):
        found = f"{tuple(given.shape)}, which looks like (N, H, W, C): pass torch.as_tensor(images).permute(0, 3, 1, 2)"
        raise ValueError(f"expected images of shape (N, C, H, W), got {found}")
    pixels = to_levels(given)
    target = torch.as_tensor(labels, device=pixels.device)
    if not _is_whole(target):
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
    if not isinstance(item, tuple | list) or len(item) < 2:
        what = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sized) else type(item).__name__
        hint = "return both from the dataset's __getitem__, or pass images and labels to from_tensors"
        raise ValueError(f"expected items (image, label), got a {what}: {hint}")
    return item[0], item[1]


def _label(label: Any) -> int:
    try:
        number = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected a whole number as label, got {label!r}: pass the position of its class") from error
    if number.numel() != 1 or not _is_whole(number):
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
    # float32 represents a level up to 1e-5 of a level.
    if (far := (scaled - levels).abs() > 1e-3).any():
        found = f"{far.double().mean():.1%} of the values between levels, such as {images[far][0]:.6g}"
        hint = "images are stored as uint8; resize or filter them before they become floats, or inside the model"
        raise ValueError(f"expected images made of the 256 levels k/255, got {found}: {hint}")
    return levels.to(torch.uint8)


def check_data(data: ImageData) -> None:
    """Raise an error unless `data` is an ImageData with at least one image."""
    if not isinstance(data, ImageData):
        hint = "ads.from_dataset takes a torch data set, ads.from_tensors images and labels"
        raise TypeError(f"expected ImageData, got {type(data).__name__}: {hint}")
    if not len(data):
        raise ValueError(f"expected at least one image, got an empty {data.name}")


def device_of(model: nn.Module, data: ImageData, device: str | torch.device | None = None) -> torch.device:
    """Return the given device, or that of the model, or that of the images if the model has no parameters."""
    return torch.device(device or next(iter(model.parameters()), data.images).device)
