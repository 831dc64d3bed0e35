"""An evaluation in words, as tables, and as the files of its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.evaluation.cost import Cost
from adaptive_smoothing.evaluation.verdict import Audit, Verdict
from adaptive_smoothing.report.figures import png
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.waterfall import waterfall_figure
from adaptive_smoothing.results import atomic, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS

# Facts that differ between two equal runs, so they are not in the result: dates, seconds, the machine, speeds.
FACTS = "facts.json"
WATERFALL = "waterfall.png"
WRITTEN = (RESULT, ROWS, FACTS, WATERFALL)


def write_verdict(folder: Path, verdict: Verdict, models: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write rows.npz, a figure, facts.json, and last result.json.

    result.json has the same bytes for the same images, model and attack.
    """
    write_rows(folder / ROWS, verdict.rows())
    with atomic(folder / WATERFALL) as partial:
        partial.write_bytes(png(waterfall_figure(verdict)))
    write_json(folder / FACTS, facts)
    write_json(folder / RESULT, {**verdict.summary(), "models": models})


def verdict_tables(verdict: Verdict, costs: dict[str, Cost]) -> list[Table]:
    """Return all tables of an evaluation."""
    return [waterfall_table(verdict), gap_table(verdict), cost_table(costs)]


def sentences(verdict: Verdict) -> list[str]:
    """Return the result in words: accuracies with their intervals, and the audit."""
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
    """Return how many images each attack fooled, and the accuracy after it."""
    rows = [(stage_title(key), f"{took:,}", f"{100 * left:.2f} %") for key, took, left in verdict.waterfall]
    note = "Each attack is run on the images that are still classified correctly. clean: incorrect without an attack."
    return Table("Accuracy after each attack", ("", "images fooled", "accuracy left"), tuple(rows), note)


def audit_sentence(audit: Audit, images: int) -> str:
    """Return the outcome of the audit in words."""
    if not audit.random:
        return f"No audit: {audit.survivors} images survived the attacks, which is too few."
    points = 100 * audit.missed_share * audit.unseen / images
    return (
        f"Audit with full FAB-T and Square, of {audit.survivors:,} images that survived: {audit.random_fooled} of "
        f"{audit.random} random ones were fooled, and {audit.closest_fooled} of the {audit.closest} with the smallest "
        f"margin. With 95 % confidence, at most {100 * audit.missed_share:.1f} % of the {audit.unseen:,} others can be "
        f"fooled, which is {points:.2f} points of accuracy."
    )


def gap_table(verdict: Verdict) -> Table:
    """Return the paper's tab:confidence for one model."""
    rows = []
    for name, cell in verdict.gaps().items():
        figures = [cell[f"{kind}_{what}"] for kind in ("right", "wrong") for what in ("mean", "median")]
        shown = ["–" if figure is None else f"{figure:.3f}" for figure in figures]
        rows.append((name, f"{100 * (cell['accuracy'] or 0):.2f} %", *shown))
    columns = ("", "accuracy", "correct: mean", "median", "incorrect: mean", "median")
    note = (
        "Gap: probability of the first class minus that of the second; under attack, on the worst version of an image. "
        "Most presets stop at the first success, so their gaps of incorrect predictions are not the largest possible; "
        "the preset margin and PGD do not stop."
    )
    return Table("Confidence gaps", columns, tuple(rows), note)


def cost_table(costs: dict[str, Cost]) -> Table:
    """Return parameters, operations and speed of the model, and of g and h if it is a mixture."""
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
    columns = ("", "parameters", "FLOPs per image", "images / s", "relative speed")
    return Table(
        "Cost of a prediction", columns, tuple(rows), "Forward passes on this machine, with default settings of torch."
    )
