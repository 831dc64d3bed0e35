"""Tables of trade-offs and comparisons, for the terminal, Markdown and the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import rich.box
import rich.table

from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.sentences import Choice, Report, Share, at, base_accuracies, images_word, percent
from adaptive_smoothing.results import difference

# Table tab:confidence of the paper: accuracy, mean gap of correct and of incorrect predictions.
PAPER_GAPS = {
    "g clean": (0.9528, 0.982, 0.698),
    "g pgd": (0.0010, 0.602, 0.998),
    "h clean": (0.8353, 0.854, 0.434),
    "h pgd": (0.4417, 0.768, 0.635),
}
GAP_COLUMNS = ("", "accuracy", "correct: mean", "median", "incorrect: mean", "median")
# A mean over fewer images is not shown.
FEW_GAPS = 5


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. The first column names the row, the others hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(report: Report) -> list[Table]:
    """Return all tables of a report, in order."""
    found = [models_table(report.main, report.alpha)]
    if report.choice is not None:
        found.append(cost_table(report.main, report.choice))
    if report.learned is not None:
        found.append(frontier_table(report.learned.comparison))
    found += [gap_table(report.main), alpha_table(report.main, report.alpha)]
    if report.live is not None:
        found.append(alpha_table(report.live, report.alpha, name="The live run"))
    return found


def models_table(run: Tradeoff, alpha: float | None = None) -> Table:
    """Return the clean and attacked accuracy of g, of h, and of their mixture."""
    found = {"g, standard": base_accuracies(run, "g"), "h, robust": base_accuracies(run, "h")}
    if alpha is not None:
        found[f"mixture, α = {alpha:.3f}"] = at(run, "clean", alpha), at(run, "worst", alpha)
    rows = tuple((name, str(clean), str(attacked)) for name, (clean, attacked) in found.items())
    note = "g and h: under the attack made on them. Mixture: under all three attacks. 95 % Clopper-Pearson intervals."
    if any(part.bounds is None for parts in found.values() for part in parts):
        note += " ≈: interpolated between two measured α."
    return Table(f"Accuracy on {run.images:,} images", ("", "clean", _attack(run)), rows, note)


def gap_table(run: Tradeoff) -> Table:
    """Return the paper's tab:confidence, with medians as well as means."""
    rows = []
    for key, cell in run.gaps().items():
        accuracy = cell["accuracy"] or 0.0
        name = key.replace(" ", ", ").replace("pgd", _attack(run))
        correct = gap_cells(cell, "right", enough=round(accuracy * run.images) >= FEW_GAPS)
        incorrect = gap_cells(cell, "wrong", enough=round((1 - accuracy) * run.images) >= FEW_GAPS)
        rows.append((name, percent(accuracy), *correct, *incorrect))
    paper = PAPER_GAPS["h pgd"][1], PAPER_GAPS["h clean"][2]
    note = (
        "Gap: probability of the first class minus that of the second. A mixture needs an h that is more confident in "
        "its correct predictions under attack than in its incorrect ones on clean images "
        f"(the paper's h: {paper[0]} and {paper[1]} on average). –: fewer than {FEW_GAPS} images."
    )
    return Table("Confidence gaps", GAP_COLUMNS, tuple(rows), note)


def gap_cells(cell: dict[str, float | None], kind: str, *, enough: bool = True) -> list[str]:
    """Return the mean and the median gap of the `right` or `wrong` predictions, as text."""
    values = [cell[f"{kind}_{what}"] if enough else None for what in ("mean", "median")]
    return ["–" if value is None else f"{value:.3f}" for value in values]


def alpha_table(
    run: Tradeoff, alpha: float | None = None, *, name: str = "Accuracy against α", every: bool = False
) -> Table:
    """Return the accuracy at the alphas of the MIX attack; if they are many, at tenths and the chosen one."""
    every = every or len(run.mix_alphas) < 9
    shown = {float(a) for a in run.mix_alphas if every or abs(a * 10 - round(a * 10)) < 1e-9}
    rows = []
    for a in sorted(shown if alpha is None else shown | {alpha}):
        parts = (_short(at(run, curve, a)) for curve in ("clean", "std", "rob", "mix"))
        rows.append((_alpha_name(a, alpha), *parts, str(at(run, "worst", a))))
    columns = ("α", "clean", "STD", "ROB", "MIX", "all three")
    note = "STD, ROB and MIX: attacks made on g, on h, and on the mixture itself. All three: the worst case."
    return Table(f"{name}: {run.images:,} images", columns, tuple(rows), note)


def cost_table(run: Tradeoff, choice: Choice) -> Table:
    """Return the accuracies at the chosen alpha, and their differences from those of g and of h."""
    clean, worst = at(run, "clean", choice.alpha).value, at(run, "worst", choice.alpha).value
    rows = [
        (f"wanted, on {choice.images:,} validation images", percent(choice.wanted), ""),
        ("reached there", str(choice.reached), ""),
        (f"on {run.images:,} {images_word(run.settings)}", percent(clean), percent(worst)),
    ]
    for model in ("g", "h"):
        other_clean, other_worst = (part.value for part in base_accuracies(run, model))
        rows.append((f"compared with {model}", _points(clean - other_clean), _points(worst - other_worst)))
    title, columns = f"The chosen α = {choice.alpha:.3f}", ("", "clean", _attack(run))
    return Table(title, columns, tuple(rows), f"{_attack(run)}: accuracy under all three attacks.")


def rich_table(table: Table) -> rich.table.Table:
    """Return the table for the terminal."""
    drawn = rich.table.Table(
        title=table.title, caption=table.note or None, box=rich.box.SIMPLE_HEAD, title_justify="left",
        caption_justify="left", title_style="bold", pad_edge=False,
    )  # fmt: skip
    for position, column in enumerate(table.columns):
        # A shortened name could be mistaken for another one.
        drawn.add_column(column, justify="right" if position else "left", no_wrap=position == 0, overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    ruler = ("---", *["---:"] * (len(table.columns) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, ruler, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", table.note] if table.note else [])]) + "\n"


def _attack(run: Tradeoff) -> str:
    return f"PGD-{run.settings['steps']}"


def _short(part: Share) -> str:
    return percent(part.value) if part.bounds else str(part)


def _alpha_name(alpha: float, chosen: float | None) -> str:
    if chosen is not None and abs(alpha - chosen) < 1e-9:
        return f"{alpha:.3f} (chosen)"
    return {0.0: "0 (g alone)", 1.0: "1 (h alone)"}.get(alpha, f"{alpha:g}")


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points".replace("-", "−")


def frontier_table(comparison: Comparison) -> Table:
    """Return one row per mixture, one column per wanted clean accuracy, with differences from the first mixture."""
    wanted = sorted({point.wanted for point in comparison.points}, key=lambda target: target or 0)
    at = {(point.mixture, point.wanted): point for point in comparison.points}
    first = next(iter(comparison.mixtures))
    rows = [
        (name, *(_cell(at.get((name, target)), at.get((first, target))) for target in wanted))
        for name in comparison.mixtures
    ]
    columns = ("mixture", *("untuned" if target is None else f"at {100 * target:g} %" for target in wanted))
    note = (
        "Clean accuracy / accuracy under all attacks, %. In brackets: difference of the latter from the first row, on "
        "the same images, with its 95 % interval."
    )
    return Table(f"Mixtures under attack, {comparison.images:,} images", columns, tuple(rows), note)


def lead_table(comparison: Comparison) -> Table:
    """Return how many points of robust accuracy mixtures gain over the first one at the same clean accuracy."""
    first, *others = comparison.mixtures
    rows = [
        (point.mixture, f"{100 * point.accuracy:.2f}", *_lead(point, comparison.robust_at(first, point.accuracy)))
        for name in others
        for point in comparison.mixtures[name]
    ]
    columns = ("mixture", "clean", "robust", f"{first}, robust", "gain")
    note = (
        f"{first}: interpolated between its two nearest settings; – outside its range. 95 % intervals over the "
        "attacked images."
    )
    return Table("At the same clean accuracy, %", columns, tuple(rows), note)


def _lead(point: Point, first: np.ndarray | None) -> tuple[str, str, str]:
    robust = f"{100 * point.robust:.2f}"
    if first is None:
        return robust, "–", "–"
    return robust, f"{100 * first.mean():.2f}", _gain(point.robust_correct[: len(first)], first)


def _cell(point: Point | None, first: Point | None) -> str:
    if point is None:
        return "–"
    found = f"{100 * point.accuracy:.2f} / {100 * point.robust:.2f}"
    if first is None or first is point:
        return found
    return f"{found} ({_gain(point.robust_correct, first.robust_correct)})"


def _gain(mine: np.ndarray, theirs: np.ndarray) -> str:
    gain, half = (100 * number for number in difference(mine, theirs))
    return f"{gain:+.2f} ± {half:.2f}".replace("-", "−")


def attacks_table(comparison: Comparison) -> Table:
    """Return one row per mixture and setting, one column per attack, and one for all attacks together."""
    counts = {name: attack["images"] for point in comparison.points for name, attack in point.facts["attacks"].items()}
    rows = []
    for point in comparison.points:
        found = point.facts["attacks"]
        left = [f"{100 * found[name]['robust']:.2f}" if name in found else "–" for name in counts]
        rows.append([point.mixture, f"{100 * point.accuracy:.2f}", *left, f"{100 * point.robust:.2f}"])
    columns = ["mixture", "clean", *counts, "all"]
    if len(counts) == 1:
        columns, *rows = (line[:-1] for line in (columns, *rows))
    images = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
    note = f"Images attacked: {images}{f'; all: {comparison.images:,}' if len(counts) > 1 else ''}."
    return Table("Mixtures under attack, %", tuple(columns), tuple(map(tuple, rows)), note)
