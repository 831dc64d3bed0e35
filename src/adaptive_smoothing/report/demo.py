"""The result of the demo: what was attacked now next to the stored runs, as a table, in words and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.comparison import Point
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import difference, percent, signed_points

# The models of the demo, in the order in which they are attacked. Each has a folder of this name.
LEARNED, FIXED, ROBUST_ALONE, STANDARD_ALONE = "learned", "fixed", "robust", "standard"
ROLES = (LEARNED, FIXED, ROBUST_ALONE, STANDARD_ALONE)


@dataclass(frozen=True)
class StoredRun:
    """Which images of the whole test set are correct, without an attack and under the attack of a stored run."""

    clean: np.ndarray
    robust: np.ndarray  # may have fewer images: the first
    attack: str

    @classmethod
    def of_point(cls, point: Point) -> StoredRun:
        """Return what a stored comparison has about a mixture."""
        return cls(point.clean_correct, point.robust_correct, " and ".join(point.facts["attacks"]))

    @classmethod
    def of_base(cls, sweep: Tradeoff, letter: str) -> StoredRun:
        """Return what a stored sweep has about g or h, under the attack made on it."""
        clean = sweep.rows[f"clean_{letter}"]
        attacked = sweep.rows["std_g" if letter == "g" else "rob_h"]
        return cls(clean, clean & attacked, f"PGD-{sweep.settings['steps']}")

    def robust_at(self, index: np.ndarray) -> np.ndarray | None:
        """Return which of the images at these positions of the test set are robust; None if some were not attacked."""
        return self.robust[index] if index.max() < len(self.robust) else None


@dataclass(frozen=True)
class DemoResult:
    """The verdicts of a demo by role; without a role that was not attacked because the demo was interrupted.

    Args:
        alpha: of the mixture with one alpha for all images.
        wanted: the clean accuracy on validation images that both mixtures were set to.
        stored: stored runs by role; without a role that has none.
    """

    verdicts: Mapping[str, Verdict]
    alpha: float
    wanted: float
    stored: Mapping[str, StoredRun]

    @property
    def titles(self) -> dict[str, str]:
        """The name of each model in the table."""
        mixtures = {LEARNED: "mixture, learned α", FIXED: f"mixture, fixed α = {self.alpha:.3f}"}
        return {**mixtures, ROBUST_ALONE: "h, robust", STANDARD_ALONE: "g, standard"}

    @property
    def interrupted(self) -> bool:
        return len(self.verdicts) < len(ROLES)

    def lead(self) -> tuple[float, float] | None:
        """Return how much more robust the learned alpha is than the fixed one, with half the width of its interval."""
        if not {LEARNED, FIXED} <= self.verdicts.keys():
            return None
        return difference(*(self.verdicts[role].robust_correct.numpy() for role in (LEARNED, FIXED)))

    def stored_lead(self) -> tuple[float, float] | None:
        """Return the same of the stored runs."""
        if not {LEARNED, FIXED} <= self.stored.keys():
            return None
        return difference(*(self.stored[role].robust for role in (LEARNED, FIXED)))

    def summary(self) -> dict[str, Any]:
        """Return the result as plain data."""
        lead = self.lead()
        return {
            "images": len(next(iter(self.verdicts.values())).labels),
            "wanted": self.wanted,
            "models": {role: self._model_summary(role) for role in self.verdicts},
            "learned minus fixed": None if lead is None else {"robust": lead[0], "plus or minus": lead[1]},
        }

    def _model_summary(self, role: str) -> dict[str, Any]:
        verdict, stored = self.verdicts[role], self.stored.get(role)
        return {
            "title": self.titles[role],
            "attack": verdict.attack,
            "clean": {"accuracy": verdict.clean, "interval": verdict.clean_interval},
            "robust": {"accuracy": verdict.robust, "interval": verdict.interval},
            "stored": stored
            and {"clean": stored.clean.mean(), "robust": stored.robust.mean(), "attack": stored.attack},
        }


def demo_table(result: DemoResult) -> Table:
    """Return one row per model: the accuracies measured now, with their intervals, and the stored ones."""
    columns = ("", "clean now, %", "robust now, %", "clean,\nstored", "robust,\nstored")
    shown = len(columns) if result.stored else -2
    rows = tuple(_row(result, role)[:shown] for role in result.verdicts)
    return Table("Accuracy of each model", columns[:shown], rows, _note(result))


def _row(result: DemoResult, role: str) -> tuple[str, ...]:
    verdict, stored = result.verdicts[role], result.stored.get(role)
    now = _cell(verdict.clean, verdict.clean_interval), _cell(verdict.robust, verdict.interval)
    beside = ("–", "–") if stored is None else (f"{100 * rows.mean():.1f}" for rows in (stored.clean, stored.robust))
    return result.titles[role], *now, *beside


def _note(result: DemoResult) -> str:
    """Return the images and the attacks behind the table."""
    first = next(iter(result.verdicts.values()))
    note = f"Now: {len(first.labels):,} images, 95 % intervals, {first.attack}."
    models: dict[str, list[str]] = {}
    for role, stored in result.stored.items():
        models.setdefault(f"under {stored.attack} on {len(stored.robust):,} images", []).append(result.titles[role])
    if models:
        clean = len(next(iter(result.stored.values())).clean)
        attacked = "; ".join(f"{' and '.join(names)} {attack}" for attack, names in models.items())
        note += f" Stored: clean on {clean:,} test images; {attacked}."
    return note


def _cell(share: float, bounds: tuple[float, float]) -> str:
    """Return a percentage; its bounds are whole numbers, so that a row fits on a line of 80 columns."""
    low, high = bounds
    return f"{100 * share:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def demo_sentences(result: DemoResult) -> Iterator[str]:
    """Yield what the demo shows, in words."""
    if not result.interrupted:
        yield _kept_and_gained(result)
    if (lead := result.lead()) is not None:
        yield _lead_sentence(lead, result.stored_lead())
    if result.stored:
        yield _agreement(result)
        yield from _stronger_attack(result)


def _kept_and_gained(result: DemoResult) -> str:
    """Return a comparison of the learned alpha with h and with g."""
    ours, h, g = (result.verdicts[role] for role in (LEARNED, ROBUST_ALONE, STANDARD_ALONE))
    kept = f"keeps {percent(ours.robust / h.robust, 0)} of its robust accuracy" if h.robust else "h is never robust"
    return (
        f"Compared with h, the mixture with a learned α has {_points(ours.clean - h.clean)} clean accuracy and {kept}. "
        f"Compared with g, it has {_points(ours.clean - g.clean)} clean accuracy and {_points(ours.robust - g.robust)} "
        "robust accuracy."
    )


def _points(change: float) -> str:
    """Return a difference of two shares in words, for example `1.2 points more`."""
    return f"{100 * abs(change):.1f} points {'more' if change >= 0 else 'less'}"


def _lead_sentence(lead: tuple[float, float], stored: tuple[float, float] | None) -> str:
    """Return the difference between the learned and the fixed alpha, on the same images."""
    words = f"The learned α changes robust accuracy by {_difference(lead)} points against one α for all images"
    return f"{words}." if stored is None else f"{words} (stored runs: {_difference(stored)})."


def _difference(found: tuple[float, float]) -> str:
    return f"{signed_points(found[0])} ± {100 * found[1]:.1f}"


def _agreement(result: DemoResult) -> str:
    """Return whether the intervals of the accuracies that were measured now contain the stored accuracies."""
    outside, compared = [], 0
    for role in (role for role in result.verdicts if role in result.stored):
        verdict, stored = result.verdicts[role], result.stored[role]
        bounds = {"clean": verdict.clean_interval, "robust": verdict.interval}
        for kind, rows in (("clean", stored.clean), ("robust", stored.robust)):
            low, high = bounds[kind]
            compared += 1
            if not low <= rows.mean() <= high:
                outside.append(f"{kind} accuracy of {result.titles[role]}")
    if not outside:
        return f"All {compared} intervals contain the stored accuracy."
    return f"{compared - len(outside)} of {compared} intervals contain the stored accuracy; not: {', '.join(outside)}."


def _stronger_attack(result: DemoResult) -> Iterator[str]:
    """Yield what the attack of the stored run leaves of each mixture on the same images."""
    parts, attack = [], ""
    for role in (LEARNED, FIXED):
        if role in result.verdicts and role in result.stored:
            verdict, stored = result.verdicts[role], result.stored[role]
            robust = stored.robust_at(verdict.index.numpy())
            if robust is not None:
                attack = stored.attack
                change = signed_points(float(robust.mean()) - verdict.robust)
                parts.append(f"{percent(float(robust.mean()))} of {result.titles[role]} ({change})")
    if parts:
        yield f"On the same images, the stored run with {attack}, a much longer attack, leaves {', '.join(parts)}."
