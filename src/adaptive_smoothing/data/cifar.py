"""The official CIFAR archives: downloaded on request, checked, and read without running their code.

The archives hold Python pickles, and a pickle can run any code. The unpickler here allows only the three names that a
NumPy array needs.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from adaptive_smoothing.data.sources import SplitArrays, whole_split
from adaptive_smoothing.results import atomic

SITE = "https://www.cs.toronto.edu/~kriz/"
# The site publishes MD5 sums, which detect damage; `_ArraysOnly` protects against malicious code.
_md5 = partial(hashlib.md5, usedforsecurity=False)


@dataclass(frozen=True)
class Layout:
    """The file layout of CIFAR-10 or CIFAR-100.

    Args:
        members: the names of the files of each split.
        labels: the key of the labels in these files.
        meta, label_names: the file with the names of the classes, and their key in it.
    """

    name: str
    file: str
    megabytes: int
    md5: str
    folder: str
    members: dict[str, tuple[str, ...]]
    labels: str
    meta: str
    label_names: str

    @property
    def url(self) -> str:
        return SITE + self.file


LAYOUTS = {
    "cifar10": Layout(
        name="cifar10",
        file="cifar-10-python.tar.gz",
        megabytes=170,
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        members={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        labels="labels",
        meta="batches.meta",
        label_names="label_names",
    ),
    "cifar100": Layout(
        name="cifar100",
        file="cifar-100-python.tar.gz",
        megabytes=169,
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        members={"train": ("train",), "test": ("test",)},
        labels="fine_labels",
        meta="meta",
        label_names="fine_label_names",
    ),
}


@dataclass(frozen=True)
class CifarFiles:
    """An official archive, or the folder unpacked from it."""

    layout: Layout
    path: Path
    splits: tuple[str, ...] = ("train", "test")

    @property
    def name(self) -> str:
        return self.layout.name

    def read(self, split: str) -> SplitArrays:
        wanted = (*self.layout.members[split], self.layout.meta)
        if not self.path.is_dir():
            found = self._from_archive(wanted)
        else:
            found = {name: (self.path / name).read_bytes() for name in wanted if (self.path / name).is_file()}
        if missing := [name for name in wanted if name not in found]:
            raise ValueError(f"expected {', '.join(missing)} in {self.path}, got none: unpack {self.layout.file} anew")
        *parts, meta = (read_pickle(found[name], f"{self.path}/{name}") for name in wanted)
        images = np.concatenate([self._pixels(part) for part in parts])
        labels = np.concatenate([np.asarray(self._entry(part, self.layout.labels)) for part in parts])
        return whole_split(images, labels, tuple(self._entry(meta, self.layout.label_names)))

    def _from_archive(self, wanted: tuple[str, ...]) -> dict[str, bytes]:
        """Return the content of members. They are read in the order of the archive, which unpacks it only once."""
        found = {}
        with tarfile.open(self.path, "r:gz") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if folder == self.layout.folder and name in wanted and (stream := archive.extractfile(member)):
                    found[name] = stream.read()
        return found

    def _pixels(self, part: dict[str, Any]) -> np.ndarray:
        data = self._entry(part, "data")
        if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3072,)):
            raise ValueError(f"expected rows of 3072 bytes as images in {self.path}, got {type(data).__name__}")
        return data.reshape(-1, 3, 32, 32)

    def _entry(self, part: dict[str, Any], key: str) -> Any:
        if key not in part:
            raise ValueError(f"expected the key {key} in {self.path}, got {', '.join(map(str, part))}")
        return part[key]


class _ArraysOnly(pickle.Unpickler):
    """An unpickler of numbers, strings, lists and NumPy arrays, which imports nothing else."""

    # The function that builds an array: `numpy.core` has become `numpy._core`, but `__reduce__` returns it in both.
    RECONSTRUCT = np.empty(0).__reduce__()[0]
    KNOWN = {  # noqa: RUF012  a constant
        ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it imports {module}.{name}")
        return self.KNOWN[module, name]


def read_pickle(data: bytes, origin: str) -> dict[str, Any]:
    """Return a dictionary of numbers, strings, lists and NumPy arrays, or raise an error for anything else."""
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly any error
        found = f"a pickle that is not read: {error}; this is not the official file, delete it and download it again"
        raise ValueError(f"expected arrays and lists only in {origin}, got {found}") from error
    if not isinstance(content, dict):
        raise ValueError(f"expected a dictionary in {origin}, got {type(content).__name__}")
    return content


def open_archive(path: Path) -> CifarFiles:
    """Return the official archive at this path, identified by its checksum."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, _md5).hexdigest()
    for layout in LAYOUTS.values():
        if layout.md5 == digest:
            return CifarFiles(layout, path)
    known = " or ".join(f"{layout.file} (md5 {layout.md5})" for layout in LAYOUTS.values())
    hint = "it is damaged or another file; delete it and download it again"
    raise ValueError(f"expected {known} at {path}, got a file with md5 {digest}: {hint}")


def open_folder(path: Path) -> CifarFiles | None:
    """Return the unpacked archive in a folder, identified by its files, or None."""
    for layout in LAYOUTS.values():
        if all((path / name).is_file() for name in (*layout.members["test"], layout.meta)):
            return CifarFiles(layout, path)
    return None


def download(layout: Layout, root: Path) -> Path:
    """Download the archive into `root` and return its path. The file gets its name after its checksum was verified."""
    target = root / layout.file
    with atomic(target) as partial:
        if (digest := _fetch(layout.url, partial)) != layout.md5:
            hint = f"the download was cut short or altered; try again, or download it by other means to {target}"
            raise ValueError(f"expected md5 {layout.md5} from {layout.url}, got {digest}: {hint}")
    return target


def _fetch(url: str, path: Path) -> str:
    """Download `url` to `path` with a progress bar and return its md5."""
    from rich.console import Console
    from rich.progress import wrap_file

    digest = _md5()
    try:
        with urllib.request.urlopen(url, timeout=60) as response, path.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            console = Console(stderr=True, emoji=False)
            with wrap_file(cast(BinaryIO, response), total, description=url, console=console) as stream:
                while chunk := stream.read(1 << 20):
                    file.write(chunk)
                    digest.update(chunk)
    except OSError as error:
        hint = f"without a connection, download it elsewhere and put it into {path.parent}"
        raise OSError(f"expected to download {url}, got: {error}; {hint}") from error
    return digest.hexdigest()
