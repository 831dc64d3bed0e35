"""Read verdicts from their run folders, also those that older versions wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive_smoothing.evaluation.alarms import Alarm
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.results import read_rows, write_rows
from adaptive_smoothing.runs.folder import ADVERSARIAL_FILE, ROWS, SCHEMA, read_result

# Settings in which a stored run may differ from the same command: what it was made with, what was kept, and what the
# digest of the model has as well.
NOT_COMPARED = ("code", "torch", "shard size", "pictures", "operating point")


def save_adversarial(folder: str | Path, verdict: Verdict) -> None:
    """Write the attacked images of a verdict, with their positions, labels and predictions.

    Without such images, those of an earlier run in the folder are removed.
    """
    path = Path(folder) / ADVERSARIAL_FILE
    if (images := verdict.adversarial) is None:
        path.unlink(missing_ok=True)
        return
    rows = verdict.rows()
    columns = {name: rows[name][: len(images)] for name in ("index", "label", "attacked_prediction")}
    write_rows(path, {"schema": np.array(SCHEMA), **columns, "images": images.numpy()})


def load_verdict(folder: str | Path) -> Verdict:
    """Return the verdict in a folder that `adaptive-smoothing evaluate` wrote."""
    folder = Path(folder)
    result = read_result(folder, "evaluation")
    columns = {name: torch.from_numpy(column) for name, column in read_rows(folder / ROWS).items()}
    if missing := [name for name in Verdict.COLUMNS if name not in columns]:
        hint = "evaluate the model again"
        raise ValueError(f"expected all columns of a verdict in {folder / ROWS}, got none of {missing}: {hint}")
    saved = folder / ADVERSARIAL_FILE
    return Verdict(
        **{field: columns.pop(name) for name, field in Verdict.COLUMNS.items()},
        attack=result["attack"] if "attack" in result else _old_title(result["settings"]["attack"]),
        stages=tuple(step["attack"] for step in result["waterfall"][1:]),
        settings=result["settings"],
        audit=None if result["audit"] is None else Audit.from_summary(result["audit"]),
        alarms=None if result["alarms"] is None else tuple(map(Alarm.from_summary, result["alarms"])),
        outputs=columns,
        adversarial=torch.from_numpy(read_rows(saved)["images"]) if saved.is_file() else None,
    )


def load_radii(folder: str | Path) -> RadiusCurve:
    """Return the verdicts in a folder that `adaptive-smoothing evaluate --eps` wrote for several radii."""
    found = read_result(folder, "radii")["radii"]
    verdicts = (load_verdict(Path(folder) / each["folder"]) for each in found)
    return RadiusCurve(tuple(each["eps"] for each in found), tuple(verdicts))


def load_curve(folder: str | Path) -> RadiusCurve:
    """Return the verdicts of an evaluation at one radius or at several."""
    if read_result(folder)["kind"] == "radii":
        return load_radii(folder)
    verdict = load_verdict(folder)
    _, _, eps = verdict.settings["attack"]["threat"].partition(":")
    return RadiusCurve((float(eps),), (verdict,))


def different_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings in which a stored run differs from one that begins now.

    Versions and the size of shards do not count: the stored result is still that of the same command.
    """
    names = [name for name in {**now, **stored} if name not in NOT_COMPARED]
    different = [name for name in names if stored.get(name) != now.get(name)]
    return ["set of images" if name == "fingerprint" else name for name in different]


def _old_title(attack: Mapping[str, Any]) -> str:
    """Return the title of an attack as `attack_title` does, from the settings of a file of schema 0."""
    norm, _, eps = attack["threat"].partition(":")
    try:
        return f"{attack['name']} at {norm} {float(eps):.4g}"
    except ValueError:  # the sha256 of a tensor
        return f"{attack['name']} at {norm} with one radius per image"
