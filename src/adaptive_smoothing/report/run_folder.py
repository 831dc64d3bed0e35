"""Write the files of a run folder: rows, figures, facts, the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adaptive_smoothing.report.figures import png
from adaptive_smoothing.results import write_bytes, write_json, write_rows
from adaptive_smoothing.runs.folder import FACTS, RESULT, ROWS, with_schema


def write_result(
    folder: Path,
    kind: str,
    result: Mapping[str, Any],
    rows: dict[str, np.ndarray],
    figures: Mapping[str, Figure],
    facts: Mapping[str, Any],
) -> None:
    """Write rows.npz if there are rows, the figures by their names, facts.json and finally result.json.

    result.json has the same bytes for equal runs; only `facts` may differ between them.

    Args:
        kind: one of `KINDS`.
    """
    if rows:
        write_rows(folder / ROWS, rows)
    else:  # those of an earlier run in the folder
        (folder / ROWS).unlink(missing_ok=True)
    for name, figure in figures.items():
        write_bytes(folder / name, png(figure))
    write_json(folder / FACTS, facts)
    write_json(folder / RESULT, with_schema(kind, result))
