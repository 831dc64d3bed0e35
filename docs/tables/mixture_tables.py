"""Tables that compare mixtures: results/mixtures/NAME, written by benchmarks/mixtures.py."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise

import numpy as np
from places import BENCHMARKS, RESULTS, comparison, percent

from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.report.comparison import frontier_table, gain
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json, read_rows

# Because of rounding, two runs of one mixture may differ in this share of their predictions.
ROUNDING_SHARE = 0.001


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
    return attacks_table(reduce(with_attacks_of, map(comparison, names)))


def with_attacks_of(first: Comparison, other: Comparison) -> Comparison:
    """Return the points of the first comparison, also under the attacks of the other where it has the same point."""
    mine, theirs = ({"models": run.facts["models"], **run.facts["settings"]} for run in (first, other))
    if mine | {"preset": None} != theirs | {"preset": None}:
        raise ValueError(f"expected two comparisons that differ in their preset only, got {mine} and {theirs}")
    others = {(point.mixture, point.wanted): point for point in other.points}
    points = (_under_attacks_of(point, others.get((point.mixture, point.wanted))) for point in first.points)
    return replace(first, points=tuple(points))


def _under_attacks_of(point: Point, other: Point | None) -> Point:
    """Return a point under its own attacks and under those of another measurement of the same mixture."""
    if other is None:
        return point
    shared = min(len(point.clean_correct), len(other.clean_correct))
    if (point.clean_correct[:shared] != other.clean_correct[:shared]).mean() > ROUNDING_SHARE:
        hint = "measure it again at the same operating point"
        raise ValueError(f"expected the same predictions of {point.mixture} in both runs, got different ones: {hint}")
    images = min(len(point.robust_correct), len(other.robust_correct))
    correct = point.robust_correct[:images] & other.robust_correct[:images]
    # In tables, the attacks of `point` come first. Where both have an attack, the figures of `point` count.
    attacks = point.facts["attacks"] | other.facts["attacks"] | point.facts["attacks"]
    return replace(point, robust_correct=correct, facts=point.facts | {"attacks": attacks})


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
        (point.mixture, f"{100 * point.accuracy:.2f}", *_lead(point, robust_at(comparison, first, point.accuracy)))
        for name in others
        for point in comparison.mixtures[name]
    ]
    columns = ("mixture", "clean", "robust", f"{first}, robust", "gain")
    note = (
        f"{first}: interpolated between its two nearest settings; – outside its range. 95 % intervals over the "
        "attacked images."
    )
    return Table("At the same clean accuracy, %", columns, tuple(rows), note)


def robust_at(comparison: Comparison, mixture: str, accuracy: float) -> np.ndarray | None:
    """Return the probability that each image is robust at a clean accuracy between two points of a mixture.

    One of the two points is chosen at random for each image, so that the expected clean accuracy is the given one.
    None if there are no such points.
    """
    images = comparison.images
    for low, high in pairwise(comparison.mixtures[mixture]):
        if low.accuracy <= accuracy <= high.accuracy:
            share = (accuracy - low.accuracy) / max(high.accuracy - low.accuracy, 1e-12)
            return (1 - share) * low.robust_correct[:images] + share * high.robust_correct[:images]
    return None


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
