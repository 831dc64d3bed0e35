"""Tables of a trade-off."""

from __future__ import annotations

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.tables import Table, gap_statistics_table
from adaptive_smoothing.report.tradeoff.report import (
    PAPER_GAPS,
    Choice,
    MeasuredAccuracy,
    Report,
    accuracy_at,
    attack_name,
    base_accuracies,
    images_word,
)
from adaptive_smoothing.results import percent, signed_points


def tables(report: Report) -> list[Table]:
    """Return all tables of a report, in order."""
    found = [models_table(report.main, report.alpha)]
    if report.choice is not None:
        found.append(choice_table(report.main, report.choice))
    return [*found, gap_table(report.main), alpha_table(report.main, report.alpha)]


def models_table(run: Tradeoff, alpha: float | None = None) -> Table:
    """Return the clean and attacked accuracy of g, of h, and of their mixture."""
    found = {"g, standard": base_accuracies(run, "g"), "h, robust": base_accuracies(run, "h")}
    if alpha is not None:
        found[f"mixture, α = {alpha:.3f}"] = accuracy_at(run, "clean", alpha), accuracy_at(run, "worst", alpha)
    rows = tuple((name, str(clean), str(attacked)) for name, (clean, attacked) in found.items())
    note = "g and h: under the attack made on them. Mixture: under all three attacks. 95 % Clopper-Pearson intervals."
    if any(part.bounds is None for parts in found.values() for part in parts):
        note += " ≈: interpolated between two measured α."
    return Table(f"Accuracy on {run.images:,} images", ("", "clean", attack_name(run)), rows, note)


def choice_table(run: Tradeoff, choice: Choice) -> Table:
    """Return the accuracies at the chosen alpha, and their differences from those of g and of h."""
    clean, worst = accuracy_at(run, "clean", choice.alpha).value, accuracy_at(run, "worst", choice.alpha).value
    rows: list[tuple[str, ...]] = [
        (f"wanted, on {choice.images:,} validation images", percent(choice.wanted), ""),
        ("reached there", str(choice.reached), ""),
        (f"on {run.images:,} {images_word(run.settings)}", percent(clean), percent(worst)),
    ]
    for model in ("g", "h"):
        other_clean, other_worst = (part.value for part in base_accuracies(run, model))
        changes = (f"{signed_points(change)} points" for change in (clean - other_clean, worst - other_worst))
        rows.append((f"compared with {model}", *changes))
    title, columns = f"The chosen α = {choice.alpha:.3f}", ("", "clean", attack_name(run))
    return Table(title, columns, tuple(rows), f"{attack_name(run)}: accuracy under all three attacks.")


def gap_table(run: Tradeoff) -> Table:
    """Return the paper's tab:confidence, with medians as well as means."""
    gaps = {key.replace(" ", ", ").replace("pgd", attack_name(run)): found for key, found in run.gaps().items()}
    paper = PAPER_GAPS["h pgd"][1], PAPER_GAPS["h clean"][2]
    note = (
        "Gap: probability of the first class minus that of the second. A mixture needs an h that is more confident in "
        "its correct predictions under attack than in its incorrect ones on clean images "
        f"(the paper's h: {paper[0]} and {paper[1]} on average)."
    )
    return gap_statistics_table(gaps, run.images, note)


def alpha_table(
    run: Tradeoff, alpha: float | None = None, *, name: str = "Accuracy against α", every: bool = False
) -> Table:
    """Return the accuracy at the alphas of the MIX attack; if they are many, at tenths and the chosen one."""
    every = every or len(run.mix_alphas) < 9
    shown = {float(a) for a in run.mix_alphas if every or abs(a * 10 - round(a * 10)) < 1e-9}
    rows = []
    for a in sorted(shown if alpha is None else shown | {alpha}):
        parts = (_without_bounds(accuracy_at(run, curve, a)) for curve in ("clean", "std", "rob", "mix"))
        rows.append((_alpha_name(a, alpha), *parts, str(accuracy_at(run, "worst", a))))
    columns = ("α", "clean", "STD", "ROB", "MIX", "all three")
    note = "STD, ROB and MIX: attacks made on g, on h, and on the mixture itself. All three: the worst case."
    return Table(f"{name}: {run.images:,} images", columns, tuple(rows), note)


def _without_bounds(part: MeasuredAccuracy) -> str:
    return percent(part.value) if part.bounds else str(part)


def _alpha_name(alpha: float, chosen: float | None) -> str:
    if chosen is not None and abs(alpha - chosen) < 1e-9:
        return f"{alpha:.3f} (chosen)"
    return {0.0: "0 (g alone)", 1.0: "1 (h alone)"}.get(alpha, f"{alpha:g}")
