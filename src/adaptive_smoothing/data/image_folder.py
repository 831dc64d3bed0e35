"""A folder of images with one subfolder per class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adaptive_smoothing.data.photographs import Framing, Photographs
from adaptive_smoothing.data.sources import SplitArrays, find_splits, whole_split
from adaptive_smoothing.settings.checks import warn_user

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
# The number of folders, and of kinds of files, that a warning names.
NAMED = 5


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images such as `train/cat/1.png`, or `cat/1.png` without splits, sorted by class and file name.

    They are read as RGB. Classes may have subfolders. Hidden files, hidden folders and folders without images
    are ignored.
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
        files = {sub.name: list(_files(sub)) for sub in folders_in(folder)}
        images = {name: inside for name, paths in files.items() if (inside := [*filter(is_image, paths)])}
        classes = self._classes(set(images))
        _warn_left_out(folder, files, classes)
        if not images:
            hint = f"got none with images in it: arrange it as {folder}/CLASS/IMAGE.png"
            raise ValueError(f"expected one subfolder of images per class in {folder}, {hint}")
        if len(classes) == 1:
            found = f"{folder} has only one class, {classes[0]}"
            warn_user(f"{found}: accuracy on it says little; expected one subfolder per class")
        labels = [classes.index(name) for name, inside in images.items() for _ in inside]
        paths = np.array([path for inside in images.values() for path in inside], dtype=object)
        return whole_split(Photographs(paths, self.framing), np.array(labels), classes)

    def _classes(self, known: set[str]) -> tuple[str, ...]:
        """Return the folders with images of all splits together, so that a label has the same meaning in each.

        Args:
            known: those of one split.
        """
        roots = [self.path / name for name in self._folders.values()] or [self.path]
        others = [sub for root in roots for sub in folders_in(root) if sub.name not in known]
        return tuple(sorted(known | {sub.name for sub in others if any(map(is_image, _files(sub)))}))


def folders_in(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    inside = path.iterdir() if path.is_dir() else ()
    return sorted(sub for sub in inside if sub.is_dir() and not sub.name.startswith("."))


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image that can be read."""
    return path.suffix.lower() in SUFFIXES


def _files(folder: Path) -> Iterator[Path]:
    """Return the files of a class in the order of torchvision: folder by folder, sorted by name; no hidden ones."""
    for root, names in sorted(_walk(folder)):
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Return each folder inside, with the names of its files. A link to a folder that was seen is not followed."""
    above = {parent.resolve() for parent in folder.absolute().parents}
    seen = {*above, folder.resolve(), *folder.resolve().parents}
    if folder.resolve() in above:
        return
    for root, folders, names in os.walk(folder, followlinks=True):
        inside, folders[:] = sorted(name for name in folders if name[0] != "."), []
        for name in inside:
            if (path := (Path(root) / name).resolve()) not in seen:
                seen.add(path)
                folders.append(name)
        yield root, names


def _warn_left_out(folder: Path, files: dict[str, list[Path]], classes: tuple[str, ...]) -> None:
    """Warn about folders without images, which are not classes, and about files that are not read."""
    found = []
    if empty := [name for name in files if name not in classes]:
        which = "which is not a class" if len(empty) == 1 else "which are not classes"
        found.append(f"{len(empty)} folder{'s' * (len(empty) != 1)} without images, {which} ({_first(empty)})")
    kinds = Counter(path.suffix or path.name for paths in files.values() for path in paths if not is_image(path))
    if kinds:
        count = kinds.total()
        hint = "convert those that are photographs to JPEG or PNG"
        found.append(f"{count:,} file{'s' * (count != 1)} of another kind, not read ({_first(list(kinds))}); {hint}")
    if found:
        warn_user(f"{folder} has {' and '.join(found)}")


def _first(names: list[str]) -> str:
    """Return the first names for a message."""
    return ", ".join(names[:NAMED]) + ", ..." * (len(names) > NAMED)
