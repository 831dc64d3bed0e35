"""The result of a certification: one row per image, from which curves and tables are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_smoothing.certification.radius import (
    LIPSCHITZ_THEOREMS,
    SMOOTHING_THEOREMS,
    lipschitz_margin_radius,
    lipschitz_radius,
)
from adaptive_smoothing.certification.target import safe_alpha
from adaptive_smoothing.results import interval, percent

# Radii of the table in result.json.
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# The alphas to choose from. Below 1/2 nothing is certified; 1 is h alone.
ALPHAS = np.round(np.linspace(0.5, 1.0, 501), 3)


@dataclass(frozen=True, repr=False)
class Certificates:
    """The result of `certify`. A certificate is wrong with at most the probability `settings["failure probability"]`.

    Args:
        rows: columns with one entry per image: index, label, prediction, certified, radius (0 where nothing is
            certified), estimate (a radius that is not certified), samples, and the numbers they were computed from.
            The prediction is the class of the certificate, or without one that of the mixture with sampled means.
        settings: everything the result depends on.
    """

    rows: dict[str, np.ndarray]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        found = f"clean {percent(self.clean)}, certified and correct {percent(self.accuracy(0.0))}"
        return f"Certificates: {found}, largest radius {self.rows['radius'].max():.4g}; {len(self.correct):,} images"

    @property
    def correct(self) -> np.ndarray:
        """Which predictions are correct, certified or not."""
        return self.rows["prediction"] == self.rows["label"]

    @property
    def clean(self) -> float:
        """The accuracy of all predictions, certified or not."""
        return float(self.correct.mean())

    @property
    def certified(self) -> np.ndarray:
        """Which images have a certificate."""
        return self.rows["certified"]

    def accuracy(self, radius: float, *, estimated: bool = False) -> float:
        """Return the share of images that are correct with at least this radius, certified or only estimated."""
        return float((self.correct & self._reaches(radius, estimated)).mean())

    def _reaches(self, radius: float, estimated: bool) -> np.ndarray:
        if estimated:
            return self.rows["estimate"] >= max(radius, np.finfo(float).tiny)
        return self.certified & (self.rows["radius"] >= radius)

    def curve(self, *, estimated: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the radii at which the certified accuracy falls, from 0 on, and the accuracy up to each of them."""
        found = self.rows["estimate" if estimated else "radius"]
        reached = np.sort(found[self.correct & self._reaches(0.0, estimated)])
        left = np.arange(len(reached), -1, -1) / len(self.correct)
        return np.concatenate([[0.0], reached]), left

    def table(self, radii: Sequence[float] = RADII) -> list[dict[str, float]]:
        """Return the certified accuracy at each radius, its 95 % interval, and the estimated accuracy."""
        rows = []
        for radius in radii:
            share, estimate = self.accuracy(radius), self.accuracy(radius, estimated=True)
            low, high = interval(round(share * len(self.correct)), len(self.correct))
            rows.append({"radius": radius, "certified": share, "low": low, "high": high, "estimate": estimate})
        return rows

    def summary(self) -> dict[str, Any]:
        """Return the content of result.json."""
        correct, radius = self.certified & self.correct, self.rows["radius"]
        return {
            "images": len(self.correct),
            "clean": {"accuracy": self.clean, "interval": interval(int(self.correct.sum()), len(self.correct))},
            "certified": {"images": int(self.certified.sum()), "right": int(correct.sum())},
            "radius": {"mean": float(np.where(correct, radius, 0.0).mean()), "largest": float(radius.max())},
            "accuracy": self.table(),
            "samples": int(self.rows["samples"].sum()),
            "settings": self.settings,
        }


def with_alpha(found: Certificates, alpha: float, theorem: str = "margin") -> Certificates:
    """Return the certificates of the mixture with another alpha, from the same samples or logits.

    Early stopping depends on alpha, so the certification must have been made without a wanted radius.
    """
    if found.settings.get("wanted radius") is not None:
        hint = "certify without a radius"
        raise ValueError(f"expected a certification with all samples, got one that stopped at a radius: {hint}")
    if found.settings["norm"] != "L2":
        raise ValueError(f"expected certificates in L2, got {found.settings['norm']}: certify in L2")
    rows, safe = dict(found.rows), safe_alpha(alpha)
    rows["radius"], rows["estimate"] = _radii(found, safe, theorem)
    rows["certified"] = rows["radius"] > 0
    rows["prediction"] = np.where(rows["certified"], rows["robust_class"], predictions(found, alpha))
    return Certificates(rows, {**found.settings, "alpha": safe, "theorem": theorem})


def _radii(found: Certificates, alpha: float, theorem: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the radii and their plug-in estimates."""
    rows, settings = found.rows, found.settings
    if settings["method"] == "smoothing":
        means = -np.sort(-rows["probabilities"].astype(np.float64), axis=1)[:, :2].T
        pairs = ((rows["lower"], np.minimum(rows["upper"], 1)), means)
        radius, estimate = (SMOOTHING_THEOREMS[theorem](*pair, settings["sigma"], alpha) for pair in pairs)
        return radius, estimate
    if settings["method"] != "lipschitz" or theorem not in LIPSCHITZ_THEOREMS:
        known = f"smoothing, or lipschitz with a theorem among {', '.join(LIPSCHITZ_THEOREMS)}"
        raise ValueError(f"expected certificates by {known}, got {settings['method']} and {theorem}")
    if theorem == "paper":
        # With the largest constant for all classes, the runner-up determines the radius.
        each = settings["constant"] / 4
        radius = lipschitz_radius(rows["lower"], rows["upper"][:, None], each, each, alpha)
    elif alpha < 1:
        radius = lipschitz_margin_radius(rows["doubt"], rows["constant"], alpha)
    else:
        radius = rows["alone"]
    return radius, radius


def predictions(found: Certificates, alpha: float) -> np.ndarray:
    """Return the predictions of the mixture with the sampled means in place of h."""
    g, h = (found.rows[name].astype(np.float64) for name in ("standard_probabilities", "probabilities"))
    return ((1 - alpha) * g + alpha * h).argmax(1)


def clean_accuracies(found: Certificates, alphas: np.ndarray = ALPHAS) -> np.ndarray:
    """Return the clean accuracy at each alpha."""
    return np.array([(predictions(found, alpha) == found.rows["label"]).mean() for alpha in alphas])


def largest_alpha(validation: Certificates, clean_accuracy: float, alphas: np.ndarray = ALPHAS) -> float | None:
    """Return the largest alpha with this clean accuracy on validation images, or None if no alpha has it."""
    enough = np.flatnonzero(clean_accuracies(validation, alphas) >= clean_accuracy)
    return float(alphas[enough[-1]]) if len(enough) else None


@dataclass(frozen=True)
class Frontier:
    """Certificates of several mixtures with the same clean accuracy, by name."""

    members: Mapping[str, Certificates]
    clean_accuracy: float

    @property
    def radii(self) -> np.ndarray:
        """The radii at which the best accuracy may change."""
        return np.unique(np.concatenate([member.curve()[0] for member in self.members.values()]))

    def accuracies(self, at: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
        """Return the certified accuracy of each member at some radii."""
        found = {}
        for name, member in self.members.items():
            reached = np.sort(member.rows["radius"][member.correct & member.certified])
            found[name] = (len(reached) - np.searchsorted(reached, at)) / len(member.correct)
        return found

    def best(self, at: Sequence[float] | np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """Return the largest certified accuracy at some radii, and the names of its members; None where it is 0."""
        found = self.accuracies(at)
        table = np.stack(list(found.values()))
        best, names = table.max(0), list(found)
        return best, [names[which] if most else None for which, most in zip(table.argmax(0), best, strict=True)]


def chosen_alphas(validation: Mapping[str, Certificates], clean_accuracy: float) -> dict[str, float]:
    """Return, for each h that reaches this clean accuracy on validation images, the largest alpha with which it does.

    At least one h must reach it.
    """
    found = {name: largest_alpha(each, clean_accuracy) for name, each in validation.items()}
    chosen = {name: alpha for name, alpha in found.items() if alpha is not None}
    if not chosen:
        best = max(clean_accuracies(each).max() for each in validation.values())
        hint = f"with alpha from 1/2 on, the best is {best:.4g} on validation images"
        raise ValueError(f"expected a clean accuracy that a certified mixture reaches, got {clean_accuracy:g}: {hint}")
    return chosen
