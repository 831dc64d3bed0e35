"""The index of the zoo: the size and the sha256 of its files. The package carries the index, but not the files.

Write it again after a change of the zoo: `python -m adaptive_smoothing.models.zoo_index zoo`
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adaptive_smoothing.models.cards import MANIFEST, base_description, read_manifest
from adaptive_smoothing.models.weight_files import file_sha256
from adaptive_smoothing.results import read_json, write_json

INDEX = Path(__file__).parent / "zoo_index.json"
MIXTURE = "mixture.json"  # in the folder of a mixture: see `mixing.pretrained`


@dataclass(frozen=True)
class ZooFile:
    """A file of the zoo. Its path is relative to the folder of the zoo."""

    path: str
    bytes: int
    sha256: str

    def is_at(self, folder: Path) -> bool:
        """Return whether the folder holds this file with the right content."""
        path = folder / self.path
        return path.is_file() and path.stat().st_size == self.bytes and file_sha256(path) == self.sha256


@dataclass(frozen=True)
class ZooEntry:
    """A model or a mixture of the zoo: its files, the figures on its card, and the models that a mixture needs."""

    files: tuple[ZooFile, ...]
    figures: dict[str, Any]
    bases: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[ZooFile, ...]:
        """Return the files that loading reads: the card and the weights."""
        return tuple(file for file in self.files if file.path.endswith((".json", ".safetensors")))


def models() -> dict[str, ZooEntry]:
    """Return the models in the index, by name."""
    return _entries("models")


def mixtures() -> dict[str, ZooEntry]:
    """Return the mixtures in the index, by name."""
    return _entries("mixtures")


def make(zoo: Path) -> dict[str, Any]:
    """Return the index of a folder of models and mixtures as plain data."""
    return {
        "models": {name: _describe(zoo, f"{name}.*", zoo / f"{name}.json") for name in sorted(read_manifest(zoo))},
        "mixtures": {
            path.parent.name: _describe(zoo, f"{path.parent.name}/*", path) | {"bases": _bases(read_json(path))}
            for path in sorted(zoo.glob(f"*/{MIXTURE}"))
        },
    }


def _describe(zoo: Path, pattern: str, card: Path) -> dict[str, Any]:
    paths = sorted(path for path in zoo.glob(pattern) if path.is_file())
    files = [ZooFile(path.relative_to(zoo).as_posix(), path.stat().st_size, file_sha256(path)) for path in paths]
    return {"files": [asdict(file) for file in files], "figures": read_json(card)["card"].get("figures", {})}


def _bases(mixture: dict[str, Any]) -> list[str]:
    """Return the names of the base classifiers of a mixture that are stored outside of its folder."""
    bases = [base_description(mixture[role]) for role in ("standard", "robust")]
    return [base["name"] for base in bases if "name" in base]


def _entries(kind: str) -> dict[str, ZooEntry]:
    return {
        name: ZooEntry(
            tuple(ZooFile(**file) for file in entry["files"]), entry["figures"], tuple(entry.get("bases", ()))
        )
        for name, entry in read_json(INDEX)[kind].items()
    }


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / MANIFEST).is_file():
        sys.exit(__doc__)
    write_json(INDEX, make(Path(sys.argv[1])))
