"""Tables and figures of attacks: speed, robust accuracy, arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from places import BENCHMARKS, RESULTS, percent

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.figures import png
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.verdicts import waterfall_figure
from adaptive_smoothing.results import read_json, read_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS, WATERFALL

# Words in stored result files, and those of the documents.
OBJECTIVES = {
    "turning g": "flip g",
    "hostile g": "worst-case g",
    "past a flat alpha": "smoothed alpha",
    "alpha down and g turned": "lower alpha and flip g",
    "lead in probability": "probability margin",
    "all of them": "all together",
}


# Reserved memory of a GPU before a call, at its peak and after it.
MEMORY_SIZES = ("before", "peak", "after")


def attacks(*runs: str) -> Table:
    """Compare our attacks with the reference AutoAttack (benchmarks/attacks.py)."""
    measured = {run: read_json(BENCHMARKS / f"attacks-{run}.json") for run in runs}
    rows = [
        (_subject(result["facts"]["models"]), name, *_contest(row))
        for result in measured.values()
        for name, row in result["rows"].items()
    ]
    columns = (
        "model",
        "attack",
        "seconds",
        "times as fast",
        "cold, s",
        "times as fast, cold",
        "forwards per image",
        "backwards",
        "robust, %",
        "only ours broke",
        "only theirs broke",
    )
    facts = next(iter(measured.values()))["facts"]
    title = f"{facts['images']:,} images of {facts['data']} on {facts['device']}, torch {facts['torch']}"
    return Table(title, columns, tuple(rows))


def _contest(row: dict[str, float]) -> tuple[str, ...]:
    cells = {"seconds": ".1f", "times as fast": ".1f", "cold": ".1f", "times as fast, cold": ".1f"}
    cells |= {"forwards": ",.0f", "backwards": ",.0f"}
    row = {"cold": row["first"], **row} if "first" in row else row  # older files
    cells |= {"seconds": ".2f"} if row["seconds"] < 1 else {}
    shown = [format(row[key], form) if key in row else "" for key, form in cells.items()]
    broke = [str(row[key]) if key in row else "" for key in ("only ours broke", "only theirs broke")]
    return (*shown, percent(row["robust accuracy"]), *broke)


def memory() -> Table:
    """Return the GPU memory that public functions reserve (benchmarks/memory.py)."""
    result = read_json(BENCHMARKS / "memory.json")
    rows = [
        (row["call"], f"{row['seconds']:.1f}", *(f"{row[size]:.2f}" for size in MEMORY_SIZES), *_verdict(row))
        for row in result["rows"]
    ]
    title = f"{' and '.join(result['models'])} on one {result['device']}"
    return Table(
        title, ("call", "seconds", *(f"{size}, GiB" for size in MEMORY_SIZES), "robust, %", "alarms"), tuple(rows)
    )


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    if "robust" not in row:
        return "", ""
    return percent(row["robust"]), ", ".join(row["alarms"]) or "none"


def _subject(models: dict[str, Any]) -> str:
    if "model" in models:
        return models["model"]["name"]
    if "mixture" in models:
        return models["mixture"]
    return f"{models['g']['name']} and {models['h']['name']}, α = {models['alpha']:g}"


def verdicts(*runs: str) -> Table:
    """Return the accuracy left after each attack of stored evaluations."""
    rows = []
    for run in runs:
        result = read_json(RESULTS / run / "result.json")
        steps = " → ".join(_step(step) for step in result["waterfall"] if step["took"])
        low, high = (100 * bound for bound in result["robust"]["interval"])
        robust = f"{percent(result['robust']['accuracy'])} ({low:.1f} to {high:.1f})"
        found = result["alarms"]
        alarms = "not checked" if found is None else ", ".join(alarm["name"] for alarm in found) or "none"
        preset = result["settings"]["attack"]["name"]
        rows.append((_subject(result["models"]), preset, f"{result['images']:,}", steps, robust, alarms))
    columns = ("model", "preset", "images", "accuracy left after each successful attack, %", "robust, %", "alarms")
    return Table("Verdicts", columns, tuple(rows), "95 % Clopper-Pearson intervals.")


def _step(step: dict[str, Any]) -> str:
    return f"{stage_title(step['attack'])}: {percent(step['left'])}"


def draw_waterfalls() -> None:
    """Draw the figure of every stored evaluation again."""
    for path in RESULTS.glob(f"verdicts/*/{RESULT}"):
        (path.parent / WATERFALL).write_bytes(png(waterfall_figure(read_verdict(path.parent))))


def read_verdict(folder: Path) -> Verdict:
    """Return the verdict of a stored evaluation, without its alarms and its audit."""
    result, rows = read_json(folder / RESULT), read_rows(folder / ROWS)
    columns = {field: torch.from_numpy(rows[name]) for name, field in Verdict.COLUMNS.items()}
    stages = tuple(step["attack"] for step in result["waterfall"][1:])
    return Verdict(**columns, stages=stages, settings=result["settings"])


# The AutoAttack columns of tab:confidence: accuracy; correct: mean, median; incorrect: mean, median.
PAPER_MARGINS = {"g": (0.0, "–", "–", "0.986", "–"), "h": (0.4075, "0.774", "0.933", "0.553", "–")}


def margins(*runs: str) -> Table:
    """Return confidence gaps under AutoAttack, at the iterate with the smallest margin, and the paper's."""
    rows = [
        (f"*the paper's {letter}, AutoAttack*", percent(accuracy), *gaps)
        for letter, (accuracy, *gaps) in PAPER_MARGINS.items()
    ]
    for run in runs:
        result = read_json(RESULTS / run / "result.json")
        attack = result["settings"]["attack"]["name"]
        for images, cell in result["gaps"].items():
            figures = [cell[f"{kind}_{what}"] for kind in ("right", "wrong") for what in ("mean", "median")]
            shown = ["–" if figure is None else f"{figure:.3f}" for figure in figures]
            name = f"{_subject(result['models'])}, {'clean' if images == 'clean' else attack}"
            rows.append((name, percent(cell["accuracy"]), *shown))
    columns = ("", "accuracy, %", "correct: mean gap", "median", "incorrect: mean gap", "median")
    return Table("Confidence gaps under attack", columns, tuple(dict.fromkeys(rows)))


def consistency() -> Table:
    """Compare verdicts in other batches and processes (benchmarks/consistency.py)."""
    result = read_json(BENCHMARKS / "consistency.json")
    differences = ("verdict", "fooled by", "queries")
    rows = [
        (
            name,
            percent(row["robust accuracy"]),
            *(str(len(row[kind])) for kind in differences),
            f"{row['margin, largest difference']:.1g}",
            f"{row['seconds']:,.0f}",
        )
        for name, row in result["rows"].items()
    ]
    columns = (
        "arrangement",
        "robust, %",
        *(f"different {kind}" for kind in differences),
        "largest margin difference",
        "seconds",
    )
    return Table(f"{result['facts']['images']} images, in fp32 on a CPU", columns, tuple(rows))


def objectives(run: str = "objectives") -> Table:
    """Return the robust accuracy under single attacks on mixtures (benchmarks/objectives.py)."""
    result = read_json(BENCHMARKS / f"{run}.json")
    mixtures, facts = result["mixtures"], result["facts"]
    names = next(iter(mixtures.values()))
    rows = [(_plain(name), *(cell for found in mixtures.values() for cell in _alone(found[name]))) for name in names]
    columns = ["attack, alone"]
    for mixture in mixtures:
        columns += [f"{mixture}: robust, %", "missed"]
    return Table(f"{facts['images']:,} images of {facts['data']} on {facts['device']}", tuple(columns), tuple(rows))


def _alone(row: dict[str, Any]) -> tuple[str, str]:
    """Return the robust accuracy under one attack, and how many images it missed that another attack fooled."""
    return percent(row["stands"]), str(row["fell to another"]) if "seconds" in row else ""


def _plain(name: str) -> str:
    """Return the name of an attack in the words of the documents; result files have older ones."""
    for old, new in OBJECTIVES.items():
        name = name.replace(old, new)
    return name


def arithmetic() -> Table:
    """Return speed and error of each arithmetic (benchmarks/arithmetic.py)."""
    measured = read_json(BENCHMARKS / "arithmetic.json")
    rows = tuple(
        (
            row["model"],
            row["arithmetic"],
            f"{row['images_per_second']:,}",
            percent(row["median"]),
            percent(row["largest"]),
            percent(row["above_bound"]),
        )
        for row in measured["rows"]
    )
    bound = f"images with an error above {percent(measured['bound'])}, %"
    columns = ("model", "arithmetic", "images per second", "error, % of the spread: median", "largest", bound)
    title = f"{measured['images']:,} images, {' and '.join(measured['models'])} on one {measured['device']}"
    return Table(title, columns, rows)
