"""A folder of images with one subfolder per class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adaptive_smoothing.data.photographs import Framing, Photographs
from adaptive_smoothing.data.sources import SplitArrays, find_splits, whole_split
from adaptive_smoothing.settings import warn_user

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images such as `train/cat/1.png`, or `cat/1.png` without splits, sorted by class and file name.

    They are read as RGB. Hidden files and folders are ignored. Classes may have subfolders.
    """

    path: Path
    framing: Framing

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._folders) or ("all",)

    @property
    def _folders(self) -> dict[str, str]:
        """The names of the folders of splits. A class that happens to be called "train" (the vehicle) holds images."""
        return find_splits(sub.name for sub in folders_in(self.path) if folders_in(sub))

    def read(self, split: str) -> SplitArrays:
        folder = self.path if split == "all" else self.path / self._folders[split]
        classes = self._classes()
        paths = {sub.name: list(_images(sub)) for sub in folders_in(folder)}
        labels = [classes.index(name) for name, inside in paths.items() for _ in inside]
        if not labels:
            hint = f"got none with images in it: arrange it as {folder}/CLASS/IMAGE.png"
            raise ValueError(f"expected one subfolder of images per class in {folder}, {hint}")
        if len(classes) == 1:
            found = f"{folder} has only one class, {classes[0]}"
            warn_user(f"{found}: accuracy on it says little; expected one subfolder per class")
        files = np.array([path for inside in paths.values() for path in inside], dtype=object)
        return whole_split(Photographs(files, self.framing), np.array(labels), classes)

    def _classes(self) -> tuple[str, ...]:
        """Return the classes of all splits together, so that a label has the same meaning in each."""
        roots = [self.path / name for name in self._folders.values()] or [self.path]
        return tuple(sorted({sub.name for root in roots for sub in folders_in(root)}))


def folders_in(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    inside = path.iterdir() if path.is_dir() else ()
    return sorted(sub for sub in inside if sub.is_dir() and not sub.name.startswith("."))


def _images(folder: Path) -> Iterator[Path]:
    """Return the image files of a class in the order of torchvision: folder by folder, sorted by name."""
    for root, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                yield Path(root) / name
