"""`load_run`: the result in a run folder of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.evaluation.stored import load_radii, load_verdict
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, load_tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.certified import read_certificates
from adaptive_smoothing.runs.folder import read_result, runs_inside
from adaptive_smoothing.settings.checks import check_path

Run = Verdict | RadiusCurve | Certificates | Tradeoff

READERS: dict[str, Callable[[Path], Run]] = {
    "evaluation": load_verdict,
    "radii": load_radii,
    "certification": read_certificates,
    "tradeoff": load_tradeoff,
}


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Return what a run folder holds.

    The result of `evaluate` is a `Verdict`, for several radii a `RadiusCurve`; that of `certify` is `Certificates`;
    that of `sweep` is a `Tradeoff`. `demo` writes a verdict for each of its models, in folders inside its own.

    Examples:
        >>> verdict = ads.load_run("results/verdicts/ours-adaptive")  # a run of this repository
        >>> len(verdict.labels), verdict.robust
        (1000, 0.43)
    """
    check_path(folder=folder)
    folder = Path(folder)
    kind = read_result(folder)["kind"]
    if kind not in READERS:
        hint = runs_inside(folder) or "docs/files.md names the readers of other files"
        raise ValueError(f"expected a run of kind {', '.join(READERS)} in {folder}, got {kind}: {hint}")
    return READERS[kind](folder)
