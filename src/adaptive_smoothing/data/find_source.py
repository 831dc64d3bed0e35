"""Find a source of images by name or path, and read one of its splits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from adaptive_smoothing.data import cifar, hub
from adaptive_smoothing.data.data_options import SIZES, DataOptions
from adaptive_smoothing.data.image_folder import ImageFolder
from adaptive_smoothing.data.items import ItemKeys
from adaptive_smoothing.data.sources import Builtin, NpzFile, Source, SplitArrays
from adaptive_smoothing.noise import keyed_seed
from adaptive_smoothing.settings.checks import similar_paths, suggestion


def find_source(name: str, root: Path, download: bool, options: DataOptions) -> Source:
    """Return the source with this name, or at this path."""
    if name.startswith(hub.PREFIX):
        if name == hub.PREFIX:
            raise ValueError(
                f"expected {hub.PREFIX}NAME, got no name: write a data set of Hugging Face, as in hf:mnist"
            )
        keys, repository = ItemKeys(options.image, options.label), name.removeprefix(hub.PREFIX)
        return hub.HubDataset(
            repository,
            keys,
            options.framing,
            config=options.config,
            split=options.split,
            revision=options.revision,
            round=bool(options.round),
        )
    path = Path(name).expanduser()
    if name not in ("builtin", *cifar.LAYOUTS) and path.is_dir() and not cifar.open_folder(path):
        options.check_only(("classes", *SIZES), name)
        return ImageFolder(path, options.framing)
    if name in ("builtin", *cifar.LAYOUTS) or path.exists():
        options.check_only(("classes",), name)
    if name == "builtin":
        return Builtin()
    return _open_cifar(cifar.LAYOUTS[name], root, download) if name in cifar.LAYOUTS else _open_file(path)


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
            f"into {root}. If you have it elsewhere, set ADAPTIVE_SMOOTHING_DATA or root= (--data-root) to its folder, "
            "or load it by its path. The data set 'builtin' needs no download."
        )
    source = cifar.open_archive(archive if archive.is_file() else cifar.download(layout, root))
    if source.layout is not layout:
        raise ValueError(f"expected {layout.file} at {archive}, got {source.layout.file}: rename it")
    return source


def _open_file(path: Path) -> Source:
    if path.is_dir() and (unpacked := cifar.open_folder(path)):
        return unpacked
    if path.is_file():
        return cifar.open_archive(path) if path.name.endswith((".tar.gz", ".tgz")) else NpzFile(path)
    names = ("builtin", *cifar.LAYOUTS)
    expected = "expected the name of a data set, hf:NAME, or a path to .npz, a CIFAR archive or an image folder"
    hint = suggestion(str(path).lower(), [*names, *similar_paths(path)])
    raise FileNotFoundError(f"{expected}, got {str(path)!r}, which does not exist: {hint}")


def read_split(source: Source, split: str) -> SplitArrays:
    """Read a split. If the source has no validation split, training images are held out for it."""
    splits = source.splits
    if splits == ("all",) and split in ("all", "test"):
        return source.read("all")
    if "train" in splits and "val" not in splits and split in ("train", "val"):
        part = source.read("train")
        chosen = validation_positions(len(part.labels))
        if split == "train":
            chosen = np.setdiff1d(np.arange(len(part.labels)), chosen)
        return part.take(chosen)
    if split in splits:
        return source.read(split)
    offered = ", ".join(sorted({"train", "val", *splits} if "train" in splits else splits))
    offer = f"it has {offered}; validation images are held out from every training"
    if splits == ("all",):
        offer = "its images have no splits: load them as 'test' or 'all', not for training or tuning"
    raise ValueError(f"expected one of the splits of {source.name}, got {split!r}: {offer}")


@lru_cache(maxsize=4)
def validation_positions(count: int) -> np.ndarray:
    """Return the positions of the tenth of `count` training images that is for validation, the same everywhere."""
    order = sorted(range(count), key=lambda position: (keyed_seed(0, "validation split", position), position))
    positions = np.array(order[: max(1, count // 10)], np.int64)
    positions.flags.writeable = False  # the cache returns this array itself
    return positions
