"""Tables of attacks: how fast they are, what they leave, what they compute in."""

from __future__ import annotations

from typing import Any

from places import BENCHMARKS, RESULTS, percent

from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json


def attacks(*runs: str) -> Table:
    """Ours beside AutoAttack's reference: benchmarks/attacks.py."""
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
        "first run, s",
        "forwards an image",
        "backwards",
        "robust, %",
        "only ours broke",
        "only theirs broke",
    )
    facts = next(iter(measured.values()))["facts"]
    title = f"{facts['images']:,} images of {facts['data']} on {facts['device']}, torch {facts['torch']}"
    return Table(title, columns, tuple(rows))


def _contest(row: dict[str, float]) -> tuple[str, ...]:
    cells = {"seconds": ".1f", "times as fast": ".1f", "first": ".0f", "forwards": ",.0f", "backwards": ",.0f"}
    cells |= {"seconds": ".2f"} if row["seconds"] < 1 else {}
    shown = [format(row[key], form) if key in row else "" for key, form in cells.items()]
    broke = [str(row[key]) if key in row else "" for key in ("only ours broke", "only theirs broke")]
    return (*shown, percent(row["robust accuracy"]), *broke)


def _subject(models: dict[str, Any]) -> str:
    if "model" in models:
        return models["model"]["name"]
    if "mixture" in models:
        return models["mixture"]
    return f"{models['g']['name']} and {models['h']['name']}, α = {models['alpha']:g}"


def verdicts(*runs: str) -> Table:
    """Evaluations in results/: what is left of the accuracy after each attack."""
    rows = []
    for run in runs:
        result = read_json(RESULTS / run / "result.json")
        steps = " → ".join(f"{step['attack']} {percent(step['left'])}" for step in result["waterfall"])
        low, high = (100 * bound for bound in result["robust"]["interval"])
        robust = f"{percent(result['robust']['accuracy'])} ({low:.1f} to {high:.1f})"
        found = result["alarms"]
        alarms = "not looked for" if found is None else ", ".join(alarm["name"] for alarm in found) or "none"
        preset = result["settings"]["attack"]["name"]
        rows.append((_subject(result["models"]), preset, f"{result['images']:,}", steps, robust, alarms))
    columns = ("model", "preset", "images", "accuracy left after each attack, %", "robust, %", "alarms")
    return Table("Verdicts", columns, tuple(rows), "95 % Clopper-Pearson intervals.")


# tab:confidence, its AutoAttack columns: accuracy, right: mean and median, wrong: mean.
PAPER_MARGINS = {"g": (0.0, "–", "–", "0.986", "–"), "h": (0.4075, "0.774", "0.933", "0.553", "–")}


def margins(*runs: str) -> Table:
    """Confidence gaps under AutoAttack, on the iterate with the smallest margin, beside the paper's."""
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
    columns = ("", "accuracy, %", "right: mean gap", "median", "wrong: mean gap", "median")
    return Table("Confidence gaps under attack", columns, tuple(dict.fromkeys(rows)))


def consistency() -> Table:
    """The same images in other batches and processes: benchmarks/consistency.py."""
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
    columns = ("arrangement", "robust, %", *(f"other {kind}" for kind in differences), "margin off by", "seconds")
    return Table(f"{result['facts']['images']} images, in fp32 on a CPU", columns, tuple(rows))


def objectives(run: str = "objectives") -> Table:
    """Attacks on mixtures, each alone: benchmarks/objectives.py."""
    result = read_json(BENCHMARKS / f"{run}.json")
    mixtures, facts = result["mixtures"], result["facts"]
    names = next(iter(mixtures.values()))
    rows = [
        (name, *(cell for found in mixtures.values() for cell in (percent(found[name]["stands"]), _fell(found[name]))))
        for name in names
    ]
    columns = ["attack, alone"]
    for mixture in mixtures:
        columns += [f"{mixture}: stands, %", "fell to another"]
    return Table(f"{facts['images']:,} images of {facts['data']} on {facts['device']}", tuple(columns), tuple(rows))


def _fell(row: dict[str, Any]) -> str:
    return str(row["fell to another"]) if "seconds" in row else ""


def arithmetic() -> Table:
    """How fast and how far off each arithmetic is: benchmarks/arithmetic.py."""
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
    bound = f"images off by more than {percent(measured['bound'])}, %"
    columns = ("model", "arithmetic", "images a second", "off by, % of the spread: median", "largest", bound)
    title = f"{measured['images']:,} images, {' and '.join(measured['models'])} on one {measured['device']}"
    return Table(title, columns, rows)
