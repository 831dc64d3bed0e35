"""The folders of stored results, and the format of a share."""

from __future__ import annotations

from pathlib import Path

from adaptive_smoothing.cli.demo_models import STORED
from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.runs.folder import has_result

ROOT = Path(__file__).parents[2]
RESULTS, BENCHMARKS = ROOT / "results", ROOT / "benchmarks" / "results"
COMPARED = RESULTS / "mixtures"


def sweep(pair: str) -> Path:
    """Return the folder of a run of `adaptive-smoothing sweep`: in the package (for the demo) or in results/."""
    inside = STORED.with_name(pair)
    return inside if has_result(inside) else RESULTS / pair


def comparison(name: str) -> Comparison:
    """Read a run of benchmarks/mixtures.py: in the package (for the demo) or in results/mixtures."""
    inside = STORED.with_name(name)
    return Comparison.read(inside if inside.exists() else COMPARED / name)


def percent(value: float) -> str:
    return f"{100 * value:.2f}"
