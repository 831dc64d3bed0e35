"""A journal of finished work, from which an interrupted run continues.

Each entry is one file: compressed columns after a sha256 of the entry's name, the journal's binding and the columns. An
entry that does not match its checksum is ignored. The binding states what the entries belong to: model, data, settings
and code.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.data.devices import check_devices
from adaptive_smoothing.results import atomic, read_json, room_for, write_json
from adaptive_smoothing.settings.checks import warn_user

BINDING = "binding.json"
# What to do when the disk is full.
RUN_AGAIN = "finished parts of the run are kept; free some space and run the same command again"
SUM = 32  # bytes of a sha256

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Journal:
    """Named entries in a folder.

    Args:
        folder: None to keep nothing.
        overwrite: replace the entries of a different run.
    """

    folder: Path | None = None
    overwrite: bool = False

    def bind(self, facts: Mapping[str, Any]) -> None:
        """Write what the entries belong to; if the folder has entries, check that they belong to the same run."""
        if self.folder is None:
            return
        path = self.folder / BINDING
        if path.is_file():
            if not (difference := _difference(path, facts)):
                return
            if not self.overwrite:
                hint = "choose another folder (--out), or begin again with --overwrite"
                raise ValueError(f"expected the journal of this run in {self.folder}, got {difference}: {hint}")
            self.clear()
        with room_for(self.folder, RUN_AGAIN):
            write_json(path, dict(facts))

    def read(self, name: str) -> Columns | None:
        """Return the columns of an entry, or None if it is missing or damaged."""
        if self.folder is None or not (path := self.folder / f"{name}.entry").is_file():
            return None
        content = path.read_bytes()
        if self._sum(self.folder, name, content[SUM:]) != content[:SUM]:
            warn_user(f"{path} does not match its checksum: its part of the run is repeated")
            return None
        with np.load(io.BytesIO(content[SUM:]), allow_pickle=False) as columns:
            return dict(columns)

    def write(self, name: str, columns: Columns) -> None:
        """Write an entry in one step: it is complete or missing, also after a crash."""
        if self.folder is None:
            return
        packed = io.BytesIO()
        np.savez_compressed(packed, **columns)  # type: ignore[arg-type]
        content = packed.getvalue()
        path = self.folder / f"{name}.entry"
        with room_for(self.folder, RUN_AGAIN), atomic(path) as partial, partial.open("wb") as file:
            file.write(self._sum(self.folder, name, content) + content)
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Remove the entries of a run that is finished or begins again; other files are kept."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in [*self.folder.glob("*.entry"), *self.folder.glob("*.tmp"), self.folder / BINDING]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    @staticmethod
    def _sum(folder: Path, name: str, content: bytes) -> bytes:
        binding = (folder / BINDING).read_bytes() if (folder / BINDING).is_file() else b""
        return hashlib.sha256(binding + f"{name}\n".encode() + content).digest()


def _difference(path: Path, facts: Mapping[str, Any]) -> str:
    """Return in words how the stored binding differs from the facts; empty if it does not."""
    try:
        theirs = read_json(path)
    except ValueError:
        return f"one with a damaged {BINDING}"
    other = [name for name in facts if theirs.get(name) != facts[name]]
    return f"one with another {', '.join(other)}" if other else ""


@contextmanager
def journal_at(folder: str | Path | None, overwrite: bool, devices: Sequence[str]) -> Iterator[Journal]:
    """Yield the journal in a folder.

    Without a folder, nothing is kept; several devices share a temporary journal.
    """
    check_devices(devices)
    if not isinstance(folder, str | os.PathLike | None):
        raise TypeError(f"expected a folder as the journal, got {folder!r}: pass a path such as 'runs/journal'")
    if folder is None and len(devices) > 1:
        with tempfile.TemporaryDirectory() as temporary:
            yield Journal(Path(temporary))
    else:
        yield Journal(None if folder is None else Path(folder), overwrite)
