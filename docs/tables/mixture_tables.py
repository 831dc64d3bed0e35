"""Tables that compare mixtures: results/mixtures/NAME, written by benchmarks/mixtures.py."""

from __future__ import annotations

from functools import reduce

import numpy as np
from places import BENCHMARKS, RESULTS, comparison, percent

from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.report.comparison import frontier_table, gain
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json, read_rows


def frontier(name: str) -> Table:
    """Return mixtures at target clean accuracies."""
    return frontier_table(comparison(name))


def leads(name: str) -> Table:
    """Return the lead of each mixture over the first one at the same clean accuracy."""
    return lead_table(comparison(name))


def kept(name: str, alone: str) -> Table:
    """Count images on which h alone is robust and a mixture is not, and the reverse."""
    compared, h = comparison(name), read_rows(RESULTS / alone / "rows.npz")
    stands = (h["fooled_by"] == -1)[: compared.images]
    wanted = sorted({point.wanted for point in compared.points if point.wanted})
    at = {(point.mixture, point.wanted): point.robust_correct[: compared.images] for point in compared.points}
    rows = tuple(
        (mixture, *(_lost_and_gained(stands, at.get((mixture, target))) for target in wanted))
        for mixture in compared.mixtures
    )
    title = f"h alone is robust on {stands.sum()} of {compared.images:,} images: images lost / gained by the mixture"
    return Table(title, ("mixture", *(f"at {100 * target:g} %" for target in wanted)), rows)


def _lost_and_gained(alone: np.ndarray, mixed: np.ndarray | None) -> str:
    return "–" if mixed is None else f"{(alone & ~mixed).sum()} / {(mixed & ~alone).sum()}"


def mixtures(*names: str) -> Table:
    """Return mixtures under several attacks; further runs add attacks."""
    return attacks_table(reduce(Comparison.with_attacks_of, map(comparison, names)))


def losses(name: str) -> Table:
    """Return the paper's tab:loss_abla for mixtures made with other weights of the loss."""
    result = comparison(name)
    stands: dict[tuple[str, str, str], str] = {}
    for point in result.points:
        changes = dict(change.split("=") for change in point.facts["made from"].split()[1:])
        ce, bce, product = (changes[f"loss.{term}"] for term in ("ce", "bce", "product"))
        stands[ce, bce, product] = percent(point.robust)
    pairs = sorted({key[:2] for key in stands})
    products = sorted({key[2] for key in stands})
    rows = tuple((f"c_prod = {product}", *(stands[*pair, product] for pair in pairs)) for product in products)
    columns = ("robust, %", *(f"c_CE = {ce}, c_BCE = {bce}" for ce, bce in pairs))
    return Table(f"{result.images:,} images", columns, rows)


def overhead() -> Table:
    """Return the time of a mixture compared with g and h (benchmarks/mixing.py)."""
    measured = read_json(BENCHMARKS / "mixing.json")
    rows = tuple(
        (
            row["mixture"].replace("second ending", "fine-tuned tail"),
            f"{row['arithmetic']}{', compiled' if row['compiled'] else ''}",
            f"{row['g_and_h_images_per_second']:,}",
            f"{row['mixture_images_per_second']:,}",
            f"{100 * row['overhead']:.1f}",
        )
        for row in measured["overhead"]
    )
    columns = ("mixture", "arithmetic", "g and h, images per second", "mixture, images per second", "extra time, %")
    return Table(f"{' and '.join(measured['models'])} on one {measured['device']}", columns, rows)


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
    return robust, f"{100 * first.mean():.2f}", gain(point.robust_correct[: len(first)], first)


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
