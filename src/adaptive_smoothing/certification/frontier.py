"""One certification read at any alpha, and the best of several h at each radius for the same clean accuracy.

What was sampled of h, and what g says, does not depend on alpha: only the radius that the theorem makes of it does. A
larger sigma certifies larger radii and costs clean accuracy, a smaller alpha brings it back from g.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_smoothing.certification import lipschitz
from adaptive_smoothing.certification import radius as radii
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.smoothing import THEOREMS
from adaptive_smoothing.certification.target import surely

# Alphas that are tried. Below 1/2 nothing is certified; at 1 it is h alone.
ALPHAS = np.round(np.linspace(0.5, 1.0, 501), 3)


def with_alpha(found: Certificates, alpha: float, theorem: str = "margin") -> Certificates:
    """The same samples, or the same logits, as certificates of the mixture with another alpha.

    That of the certificates themselves may be anything, but they must have been made without a wanted radius: what
    stops early depends on it.
    """
    if found.settings.get("wanted radius") is not None:
        raise ValueError("expected a certification with all samples, got one that stopped at a radius: leave it out")
    if found.settings["norm"] != "L2":
        raise ValueError(f"expected certificates in L2, got {found.settings['norm']}: turn radii into it afterwards")
    rows, safe = dict(found.rows), surely(alpha)
    rows["radius"], rows["estimate"] = _radii(found, safe, theorem)
    rows["certified"] = rows["radius"] > 0
    rows["prediction"] = np.where(rows["certified"], rows["robust_class"], predictions(found, alpha))
    return Certificates(rows, {**found.settings, "alpha": safe, "theorem": theorem})


def _radii(found: Certificates, alpha: float, theorem: str) -> tuple[np.ndarray, np.ndarray]:
    """The radius, and its plug-in estimate."""
    rows, settings = found.rows, found.settings
    if settings["method"] == "smoothing":
        means = -np.sort(-rows["probabilities"].astype(np.float64), axis=1)[:, :2].T
        pairs = ((rows["lower"], np.minimum(rows["upper"], 1)), means)
        radius, estimate = (THEOREMS[theorem](*pair, settings["sigma"], alpha) for pair in pairs)
        return radius, estimate
    if settings["method"] != "lipschitz" or theorem not in lipschitz.THEOREMS:
        raise ValueError(
            f"expected certificates by smoothing, or by a Lipschitz constant with a theorem among "
            f"{', '.join(lipschitz.THEOREMS)}, got {settings['method']} and {theorem}"
        )
    if theorem == "paper":
        # One constant for all classes, the largest, so that the second class decides.
        each = settings["constant"] / 4
        found_radius = radii.lipschitz_radius(rows["lower"], rows["upper"][:, None], each, each, alpha)
    else:
        found_radius = rows["alone"]
        if alpha < 1:
            found_radius = radii.lipschitz_margin_radius(rows["doubt"], rows["constant"], alpha)
    return found_radius, found_radius


def predictions(found: Certificates, alpha: float) -> np.ndarray:
    """What the mixture says if h is what was sampled of it."""
    g, h = (found.rows[name].astype(np.float64) for name in ("standard_probabilities", "probabilities"))
    return ((1 - alpha) * g + alpha * h).argmax(1)


def clean_accuracies(found: Certificates, alphas: np.ndarray = ALPHAS) -> np.ndarray:
    return np.array([(predictions(found, alpha) == found.rows["label"]).mean() for alpha in alphas])


def largest_alpha(validation: Certificates, clean_accuracy: float, alphas: np.ndarray = ALPHAS) -> float | None:
    """The largest alpha with this clean accuracy on validation images; None if no mixture that can be certified has
    it."""
    enough = np.flatnonzero(clean_accuracies(validation, alphas) >= clean_accuracy)
    return float(alphas[enough[-1]]) if len(enough) else None


@dataclass(frozen=True)
class Frontier:
    """Certificates of several mixtures by name, with one clean accuracy, and the best of them at each radius."""

    members: Mapping[str, Certificates]
    clean_accuracy: float

    @property
    def radii(self) -> np.ndarray:
        """Where the best accuracy may change."""
        ends = [member.curve()[0] for member in self.members.values()]
        return np.unique(np.concatenate([[0.0], *ends]))

    def accuracies(self, at: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
        """Certified accuracy of each member at some radii."""
        return {name: _accuracies(member, np.asarray(at)) for name, member in self.members.items()}

    def best(self, at: Sequence[float] | np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """The largest certified accuracy at each of some radii, and whose it is: nobody's, where there is none."""
        found = self.accuracies(at)
        table = np.stack(list(found.values()))
        best, names = table.max(0), list(found)
        return best, [names[which] if most else None for which, most in zip(table.argmax(0), best, strict=True)]


def _accuracies(member: Certificates, at: np.ndarray) -> np.ndarray:
    """All at once: how many radii of right answers are at least as large."""
    reached = np.sort(member.rows["radius"][member.correct & member.certified])
    return (len(reached) - np.searchsorted(reached, at)) / len(member.correct)


def chosen_alphas(validation: Mapping[str, Certificates], clean_accuracy: float) -> dict[str, float]:
    """The alpha of each h that can have this clean accuracy on validation images; some h must."""
    found = {name: largest_alpha(each, clean_accuracy) for name, each in validation.items()}
    chosen = {name: alpha for name, alpha in found.items() if alpha is not None}
    if not chosen:
        best = max(clean_accuracies(each).max() for each in validation.values())
        raise ValueError(
            f"expected a clean accuracy that a certified mixture can have, got {clean_accuracy:g}: with alpha from 1/2 "
            f"on the best is {best:.4g} on validation images"
        )
    return chosen


def build_frontier(
    members: Mapping[str, tuple[Certificates, Certificates]], clean_accuracy: float, theorem: str = "margin"
) -> Frontier:
    """From certificates of validation and of test images of each h with the same g: alpha is chosen on the former."""
    alphas = chosen_alphas({name: validation for name, (validation, _) in members.items()}, clean_accuracy)
    found = {name: with_alpha(members[name][1], alpha, theorem) for name, alpha in alphas.items()}
    return Frontier(found, clean_accuracy)
