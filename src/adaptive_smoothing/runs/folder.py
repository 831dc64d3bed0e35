"""The folder of a run: a result, one row per image, a journal while the run is unfinished; facts about the machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive_smoothing.results import check_writable, read_json
from adaptive_smoothing.runs.journal import BINDING
from adaptive_smoothing.version import code_version

# What users type; `python -m` puts the name of a file in its place.
PROGRAM = "adaptive-smoothing"
RESULT, ROWS, JOURNAL = "result.json", "rows.npz", "journal"
# What differs between two equal runs, so it is not in the result: dates, seconds, the machine, speeds.
FACTS = "facts.json"
# The attacked images. They are float32 in [0, 1], because rounding to 256 levels would undo some attacks.
ADVERSARIAL_FILE = "adversarial.npz"
# Some images and their attacked versions as bytes, and the page that shows them.
PICTURES, PAGE = "pictures.npz", "page.html"
WATERFALL, CALIBRATION, RADII, CERTIFIED = "waterfall.png", "calibration.png", "radii.png", "certified.png"
# Files that only some runs write. Those of a run that is replaced would look like files of the new run.
OF_SOME_RUNS = (ADVERSARIAL_FILE, PICTURES, PAGE, WATERFALL, CALIBRATION, RADII, CERTIFIED)
# The version of the form of all files of a run folder; docs/files.md describes each version. Older files have none.
SCHEMA = 1
# The kinds of runs, with a key that only the results of this kind have: older files do not name their kind.
KINDS = {"evaluation": "waterfall", "radii": "radii", "certification": "certified", "tradeoff": "curves"}


def has_result(folder: str | Path) -> bool:
    """Return whether a folder has the two files of a stored run."""
    return all((Path(folder) / name).is_file() for name in (RESULT, ROWS))


def is_finished(folder: str | Path) -> bool:
    """Return whether a folder holds the result of a run whose journal has been removed."""
    return (Path(folder) / RESULT).is_file() and not (Path(folder) / JOURNAL / BINDING).is_file()


def with_schema(kind: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a result file: its schema, its kind, and the result."""
    return {"schema": SCHEMA, "kind": kind, **result}


def read_result(folder: str | Path, kind: str | None = None) -> dict[str, Any]:
    """Return the content of `result.json`, or raise an error for a newer schema or another kind than the given one."""
    path = Path(folder) / RESULT
    if not path.is_file():
        hint = runs_inside(path.parent) or "`adaptive-smoothing evaluate`, `certify` and `sweep` write one"
        raise FileNotFoundError(f"expected a run folder with {RESULT} and {ROWS}, found no {path}: {hint}")
    result = read_json(path)
    if (schema := result.setdefault("schema", 0)) not in range(SCHEMA + 1):
        hint = "it was written by a newer version; update adaptive-smoothing"
        raise ValueError(f"expected files of schema {SCHEMA} or less in {folder}, got schema {schema!r}: {hint}")
    found = result.setdefault("kind", next((name for name, key in KINDS.items() if key in result), "unknown"))
    if kind is not None and found != kind:
        raise ValueError(f"expected the {kind} of a model in {folder}, got a run of kind {found}: name another folder")
    return result


def runs_inside(folder: Path) -> str:
    """Return which run folders are inside of this one, as a hint; empty if there are none."""
    names = sorted(path.parent.name for path in folder.glob(f"*/{RESULT}"))
    return f"load one of the runs inside: {', '.join(names)}" if names else ""


def make_folder(folder: Path, *, overwrite: bool) -> Path:
    """Make the folder of a run and check that it can be written to, before any work is done."""
    if not overwrite and (folder / RESULT).exists():
        hint = "choose another --out, or replace it with --overwrite"
        raise FileExistsError(f"expected a folder without a run, got {folder}, which holds one: {hint}")
    check_writable(folder, "choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_result(folder)
    return folder


def _remove_result(folder: Path) -> None:
    """Remove an old result with its files: nobody should take them for those of the new run."""
    path = folder / RESULT
    if not path.is_file():  # other files may belong to the user
        return
    with suppress(ValueError):
        for row in read_json(path).get("radii", ()):
            if re.fullmatch(r"eps-[\w.+-]+", name := str(row.get("folder"))):
                shutil.rmtree(folder / name, ignore_errors=True)
    for name in (ROWS, FACTS, *OF_SOME_RUNS, RESULT):
        (folder / name).unlink(missing_ok=True)


def resumable_folder(folder: Path, overwrite: bool) -> Path:
    """Return the folder of an unfinished run, which still has its journal, or make the folder of a new run."""
    unfinished = (folder / JOURNAL / BINDING).is_file()
    return folder if unfinished and not overwrite else make_folder(folder, overwrite=overwrite)


def environment(device: torch.device | str) -> dict[str, Any]:
    """Return the date, the versions of the software, and the machine."""
    device = torch.device(device)
    name = f"{device.type}, {torch.get_num_threads()} threads on {os.cpu_count()} cores"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "adaptive-smoothing": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "command": shlex.join([PROGRAM if (name := Path(sys.argv[0]).name) == "__main__.py" else name, *sys.argv[1:]]),
    }
