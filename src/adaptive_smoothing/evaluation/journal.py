"""A run that survives: finished work as files that are whole or absent, bound to what they are about.

Each entry is one file, its sha256 first, then compressed columns. An entry that does not match its sum is not there.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.results import atomic, read_json, write_json

BINDING = "binding.json"
SUM = 32
# Bytes of a model that are summed together, and how many such blocks at a time.
BLOCK, SUMMING = 2**22, 4
# Attributes of a module that say how it computes, and look the same in every process.
PLAIN = bool | int | float | str

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Journal:
    """Entries by name in a folder; None for the folder keeps nothing.

    `overwrite` takes the place of entries about something else.
    """

    folder: Path | None = None
    overwrite: bool = False

    def bind(self, facts: Mapping[str, Any]) -> None:
        """Say what the entries are about, or find out that the folder's are about something else."""
        if self.folder is None:
            return
        path = self.folder / BINDING
        if path.is_file():
            if not (other := self._differs(path, facts)):
                return
            if not self.overwrite:
                raise ValueError(
                    f"expected the journal of this run in {self.folder}, got {other}: choose another folder (--out), "
                    "or begin again with --overwrite"
                )
            self.clear()
        with room_for(self.folder):
            write_json(path, dict(facts))

    @staticmethod
    def _differs(path: Path, facts: Mapping[str, Any]) -> str:
        """What the entries are about instead, in words; empty where it is the same."""
        try:
            theirs = read_json(path)
        except ValueError:
            return f"one with a damaged {BINDING}"
        other = [name for name in facts if theirs.get(name) != facts[name]]
        return f"one with another {', '.join(other)}" if other else ""

    def read(self, name: str) -> Columns | None:
        """The columns of an entry, or None where there is none."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[SUM:]).digest() != content[:SUM]:
            warnings.warn(f"{path} does not match its checksum: its part of the run is done again", stacklevel=2)
            return None
        with np.load(io.BytesIO(content[SUM:]), allow_pickle=False) as columns:
            return dict(columns)

    def write(self, name: str, columns: Columns) -> None:
        path = self._path(name)
        if path is None or self.folder is None:
            return
        packed = io.BytesIO()
        np.savez_compressed(packed, **columns)  # type: ignore[arg-type]
        content = packed.getvalue()
        with room_for(self.folder), atomic(path) as partial, partial.open("wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Remove the entries, for a run that is finished or begins again."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in [*self.folder.glob("*.entry"), *self.folder.glob("*.tmp"), self.folder / BINDING]:
            path.unlink(missing_ok=True)
        # Somebody else's file may be in it.
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.entry"


@contextmanager
def room_for(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"no room is left for {folder}: what it holds is whole; free some space and run the same command again",
        ) from error


def model_digest(model: nn.Module) -> str:
    """sha256 of a model's structure and of every number in it."""
    digest = hashlib.sha256(repr(model).encode())
    for name, module in model.named_modules():
        plain = {key: value for key, value in sorted(vars(module).items()) if isinstance(value, PLAIN)}
        digest.update(f"{name} {plain}".encode())
    # Not the state_dict, which lacks the numbers that a module does not save, such as those of a normalisation.
    tensors = dict(sorted([*model.named_parameters(), *model.named_buffers()]))
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    # While one block is copied from the device, others are summed on other cores.
    with ThreadPoolExecutor(SUMMING) as pool:
        for part in pool.map(_sum, _blocks(tensors.values())):
            digest.update(part)
    return digest.hexdigest()


def _blocks(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    """The contents of tensors, put together where they are: a copy from a device costs little more when it is long."""
    block: list[Tensor] = []
    for tensor in tensors:
        content = tensor.detach().contiguous().flatten().view(torch.uint8)
        block.append(content.to(block[0].device) if block else content)
        if sum(map(len, block)) >= BLOCK:
            yield _on_the_host(block)
            block = []
    if block:
        yield _on_the_host(block)


def _on_the_host(block: list[Tensor]) -> memoryview:
    return torch.cat(block).cpu().numpy().data


def _sum(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()
