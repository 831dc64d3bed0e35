"""Certificates at any alpha from one certification, and the best of several h at each radius.

The samples of h and the probabilities of g do not depend on alpha; only the radius does. A larger sigma certifies
larger radii and costs clean accuracy, which a smaller alpha regains from g. So members of a frontier are compared at
the same clean accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.radius import (
    LIPSCHITZ_THEOREMS,
    SMOOTHING_THEOREMS,
    lipschitz_margin_radius,
    lipschitz_radius,
)
from adaptive_smoothing.certification.target import safe_alpha

# The alphas to choose from. Below 1/2 nothing is certified; 1 is h alone.
ALPHAS = np.round(np.linspace(0.5, 1.0, 501), 3)


def with_alpha(found: Certificates, alpha: float, theorem: str = "margin") -> Certificates:
    """Return the certificates of the mixture with another alpha, from the same samples or logits.

    Early stopping depends on alpha, so the certification must have been made without a wanted radius.
    """
    if found.settings.get("wanted radius") is not None:
        raise ValueError("expected a certification with all samples, got one that stopped at a radius: leave it out")
    if found.settings["norm"] != "L2":
        raise ValueError(f"expected certificates in L2, got {found.settings['norm']}: convert the radii afterwards")
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
        raise ValueError(
            f"expected certificates by smoothing, or by a Lipschitz constant with a theorem among "
            f"{', '.join(LIPSCHITZ_THEOREMS)}, got {settings['method']} and {theorem}"
        )
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
    """Return the largest alpha with this clean accuracy on validation images, or None if there is none from 1/2 on."""
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
        ends = [member.curve()[0] for member in self.members.values()]
        return np.unique(np.concatenate([[0.0], *ends]))

    def accuracies(self, at: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
        """Return the certified accuracy of each member at some radii."""
        return {name: _accuracies(member, np.asarray(at)) for name, member in self.members.items()}

    def best(self, at: Sequence[float] | np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """Return the largest certified accuracy at some radii, and the name of its member; None where it is 0."""
        found = self.accuracies(at)
        table = np.stack(list(found.values()))
        best, names = table.max(0), list(found)
        return best, [names[which] if most else None for which, most in zip(table.argmax(0), best, strict=True)]


def _accuracies(member: Certificates, at: np.ndarray) -> np.ndarray:
    """Return `member.accuracy` at all radii in one pass."""
    reached = np.sort(member.rows["radius"][member.correct & member.certified])
    return (len(reached) - np.searchsorted(reached, at)) / len(member.correct)


def chosen_alphas(validation: Mapping[str, Certificates], clean_accuracy: float) -> dict[str, float]:
    """Return the largest alpha of each h that reaches this clean accuracy on validation images; at least one must."""
    found = {name: largest_alpha(each, clean_accuracy) for name, each in validation.items()}
    chosen = {name: alpha for name, alpha in found.items() if alpha is not None}
    if not chosen:
        best = max(clean_accuracies(each).max() for each in validation.values())
        raise ValueError(
            f"expected a clean accuracy that a certified mixture reaches, got {clean_accuracy:g}: with alpha from 1/2 "
            f"on, the best is {best:.4g} on validation images"
        )
    return chosen


def build_frontier(
    members: Mapping[str, tuple[Certificates, Certificates]], clean_accuracy: float, theorem: str = "margin"
) -> Frontier:
    """Return the frontier of several h with the same g.

    Args:
        members: certificates of validation images, on which alpha is chosen, and of test images, by the name of h.
    """
    alphas = chosen_alphas({name: validation for name, (validation, _) in members.items()}, clean_accuracy)
    found = {name: with_alpha(members[name][1], alpha, theorem) for name, alpha in alphas.items()}
    return Frontier(found, clean_accuracy)
