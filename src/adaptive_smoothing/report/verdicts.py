"""An evaluation as tables and as the files of its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_smoothing.evaluation.cost import Cost
from adaptive_smoothing.evaluation.verdict import Audit, Verdict
from adaptive_smoothing.report.figures import png
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.waterfall import waterfall_figure
from adaptive_smoothing.results import atomic, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

# What differs from one run to the next, and so is not in the result: dates, seconds, the machine, speeds.
FACTS = "facts.json"
WATERFALL = "waterfall.png"
WRITTEN = (RESULT, ROWS, FACTS, WATERFALL)


def write_verdict(folder: Path, verdict: Verdict, models: dict[str, Any], facts: dict[str, Any]) -> None:
    """rows.npz, a figure, facts.json, and last result.json: the same bytes for the same images, model and attack."""
    write_rows(folder / ROWS, verdict.rows())
    with atomic(folder / WATERFALL) as partial:
        partial.write_bytes(png(waterfall_figure(verdict)))
    write_json(folder / FACTS, facts)
    write_json(folder / RESULT, {**verdict.summary(), "models": models})


def verdict_tables(verdict: Verdict, costs: dict[str, Cost]) -> list[Table]:
    return [waterfall_table(verdict), gap_table(verdict), cost_table(costs)]


def sentences(verdict: Verdict) -> list[str]:
    """The result in words: accuracies with their intervals, the audit, the alarms."""
    clean_low, clean_high = (100 * bound for bound in verdict.clean_interval)
    low, high = (100 * bound for bound in verdict.interval)
    found = [
        f"Clean accuracy {100 * verdict.clean:.2f} % ({clean_low:.1f} to {clean_high:.1f}), robust accuracy "
        f"{100 * verdict.robust:.2f} % ({low:.1f} to {high:.1f}) on {len(verdict.labels):,} images; 95 % "
        "Clopper-Pearson intervals."
    ]
    if verdict.audit is not None:
        found.append(audit_sentence(verdict.audit, len(verdict.labels)))
    return found


def waterfall_table(verdict: Verdict) -> Table:
    """Which attack took how many images, from the clean accuracy down to the robust one."""
    rows = [(name, f"{took:,}", f"{100 * left:.2f} %") for name, took, left in verdict.waterfall]
    return Table("What took the images", ("", "images", "accuracy left"), tuple(rows))


def audit_sentence(audit: Audit, images: int) -> str:
    if not audit.random:
        return f"{audit.survivors} survivors are too few for an audit."
    points = 100 * audit.missed_share * audit.unseen / images
    return (
        f"Audit by full FAB-T and Square: of {audit.survivors:,} survivors, {audit.random_fooled} of {audit.random} "
        f"chosen at random fell, and {audit.closest_fooled} of the {audit.closest} closest to falling. "
        f"At 95 %, at most {100 * audit.missed_share:.1f} % of the {audit.unseen:,} others would fall, "
        f"{points:.2f} points of accuracy."
    )


def gap_table(verdict: Verdict) -> Table:
    """The paper's tab:confidence for one model."""
    rows = []
    for name, cell in verdict.gaps().items():
        figures = [cell[f"{kind}_{what}"] for kind in ("right", "wrong") for what in ("mean", "median")]
        shown = ["–" if figure is None else f"{figure:.3f}" for figure in figures]
        rows.append((name, f"{100 * (cell['accuracy'] or 0):.2f} %", *shown))
    columns = ("", "accuracy", "right: mean gap", "median", "wrong: mean gap", "median")
    note = (
        "Gap: probability of the first class minus that of the second, under attack on the worst version of an image. "
        "Only the preset margin and the settings of PGD go on when an image is fooled; with others, gaps where wrong "
        "are not the widest there are."
    )
    return Table("Confidence gaps", columns, tuple(rows), note)


def cost_table(costs: dict[str, Cost]) -> Table:
    """Parameters, operations and speed, beside those of the models it is made of."""
    base = next(iter(costs.values()))
    rows = [
        (
            name,
            f"{cost.parameters / 1e6:.2f} M",
            f"{cost.flops / 1e9:.3f} G",
            f"{cost.images_per_second:,.0f}",
            f"{cost.images_per_second / base.images_per_second:.2f}",
        )
        for name, cost in costs.items()
    ]
    columns = ("", "parameters", "FLOPs an image", "images a second", "relative")
    return Table(
        "What it costs to run", columns, tuple(rows), "Forward passes on this machine, with torch's own settings."
    )
