"""Sources of images: what they have in common, a `.npz` file, and the built-in sheets.

A source lists its official splits and reads one of them into arrays. `datasets.py` holds out validation images.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The splits, and the names that folders and Hugging Face data sets use for them.
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class SplitArrays:
    """One split as arrays: uint8 NCHW images, int64 labels, class names, and positions in the official split.

    Args:
        classes_known: False if the classes are numbers that were counted from the labels.
    """

    images: np.ndarray | LazyImages
    labels: np.ndarray
    classes: tuple[str, ...]
    index: np.ndarray
    classes_known: bool = True

    def take(self, rows: np.ndarray) -> SplitArrays:
        """Return a selection of the images."""
        return replace(self, images=self.images[rows], labels=self.labels[rows], index=self.index[rows])


class LazyImages(Protocol):
    """Images that are read by `numpy.asarray`, after a selection."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: np.ndarray) -> LazyImages: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


class Source(Protocol):
    """A source of labelled images. `splits` is `("all",)` if they have no splits."""

    @property
    def name(self) -> str: ...
    @property
    def splits(self) -> tuple[str, ...]: ...
    def read(self, split: str) -> SplitArrays: ...


def whole_split(
    images: np.ndarray | LazyImages, labels: np.ndarray, classes: tuple[str, ...], *, classes_known: bool = True
) -> SplitArrays:
    """Return a complete official split, in which image i has position i."""
    return SplitArrays(images, labels.astype(np.int64), classes, np.arange(len(images)), classes_known)


def find_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stand for a split, by split: {"val": "validation"}."""
    known = {alias: split for split, aliases in SPLITS.items() for alias in reversed(aliases)}
    found = {known[name.lower()]: name for name in names if name.lower() in known}
    return {split: found[split] for split in SPLITS if split in found}


@dataclass(frozen=True)
class NpzFile:
    """A NumPy file with `train_images`, `train_labels`, `test_images`, ..., or with `images` and `labels` only.

    It may also have `classes`, the names of the classes.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def arrays(self) -> Any:
        try:
            arrays = np.load(self.path, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"expected a NumPy .npz file at {self.path}, got something else: {error}") from error
        if isinstance(arrays, np.ndarray):
            hint = "save images and labels together, np.savez(path, images=..., labels=...)"
            raise ValueError(f"expected a NumPy .npz file at {self.path}, got one array without labels: {hint}")
        return arrays

    @property
    def splits(self) -> tuple[str, ...]:
        held = tuple(split for split in SPLITS if f"{split}_images" in self.arrays.files)
        if held or "images" in self.arrays.files:
            return held or ("all",)
        found = f"{', '.join(self.arrays.files) or 'none'}: rename the arrays"
        wanted = "train_images, train_labels, test_images, test_labels (or images, labels)"
        raise ValueError(f"expected the keys {wanted} in {self.path}, got {found}")

    def read(self, split: str) -> SplitArrays:
        prefix = "" if split == "all" else f"{split}_"
        images, labels = self._array(f"{prefix}images"), self._labels(f"{prefix}labels")
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] > 4):
            found = f"{images.dtype} of shape {images.shape}: convert to levels 0..255, channels last"
            wanted = f"{prefix}images in {self.path} to be uint8 of shape (count, height, width, channels)"
            raise ValueError(f"expected {wanted}, got {found}")
        channels_last = images if images.ndim == 4 else images[..., None]
        names = self._names()
        classes = self._numbers() if names is None else names
        return whole_split(channels_last.transpose(0, 3, 1, 2), labels, classes, classes_known=names is not None)

    def _array(self, key: str) -> np.ndarray:
        try:
            return self.arrays[key]
        except KeyError:
            held = ", ".join(self.arrays.files)
            raise ValueError(f"expected the key {key} in {self.path}, got only {held}: add it") from None
        except Exception as error:  # a damaged file can raise nearly any error
            what, found = "an array", f"a damaged file: {error}; download it again"
            if "allow_pickle" in str(error):
                what, found = "plain numbers", "Python objects, which can run code: save it with a numeric dtype"
            raise ValueError(f"expected {what} under {key} in {self.path}, got {found}") from error

    def _labels(self, key: str) -> np.ndarray:
        labels = self._array(key).reshape(-1)
        if labels.dtype.kind not in "iu":
            raise ValueError(f"expected whole numbers under {key} in {self.path}, got {labels.dtype}")
        return labels

    def _names(self) -> tuple[str, ...] | None:
        """Return the names of the classes in the file, those of CIFAR-10 for `cifar10.npz`, else None."""
        if "classes" in self.arrays.files:
            return tuple(str(name) for name in self._array("classes"))
        return CIFAR10_CLASSES if self.name == "cifar10" else None

    def _numbers(self) -> tuple[str, ...]:
        """Return numbers up to the largest label of all splits as names."""
        keys = [key for key in self.arrays.files if key.endswith("labels")]
        largest = max(int(self._labels(key).max(initial=0)) for key in keys)
        return tuple(str(label) for label in range(largest + 1))


@dataclass(frozen=True)
class Builtin:
    """The built-in CIFAR-10 images: the first 1,000 of the test split and of the validation split.

    Each split is one lossless WebP sheet; `index.json` holds labels and positions. See `make_builtin.py`.
    """

    name: str = "builtin"
    splits: tuple[str, ...] = ("val", "test")

    def read(self, split: str) -> SplitArrays:
        from PIL import Image

        contents = self._contents()
        entry = contents["splits"][split]
        labels, index = np.array(entry["labels"]), np.array(entry["index"])
        sheet = np.asarray(Image.open(io.BytesIO((_builtin() / entry["sheet"]).read_bytes())).convert("RGB"))
        return SplitArrays(from_sheet(sheet, len(labels)), labels, tuple(contents["classes"]), index)

    def fingerprint(self, split: str) -> str:
        """Return the `ImageData.fingerprint` that the images of a split must have."""
        return self._contents()["splits"][split]["sha256"]

    def _contents(self) -> dict[str, Any]:
        return json.loads((_builtin() / "index.json").read_text())


def _builtin() -> Traversable:
    return files("adaptive_smoothing.data") / "builtin"


def to_sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Return NCHW images as one HWC picture with `columns` images per row. The images must fill the rows."""
    _, channels, height, width = images.shape
    tiles = images.reshape(-1, columns, channels, height, width)
    return tiles.transpose(0, 3, 1, 4, 2).reshape(-1, columns * width, channels)


def from_sheet(sheet: np.ndarray, count: int, side: int = 32) -> np.ndarray:
    """Return the images of a sheet: the inverse of `to_sheet` for square images."""
    rows, columns = sheet.shape[0] // side, sheet.shape[1] // side
    tiles = sheet.reshape(rows, side, columns, side, -1)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3).reshape(rows * columns, -1, side, side)[:count])
