"""How sure h is under attack, and the alpha that lem:certified_radius asks for because of it.

A margin that attacks have left is an estimate of the robust margin, and so from above: a better attack leaves less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_smoothing.certification.radius import needed_alpha, needed_margin

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75)


def held_share(right: np.ndarray, margins: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """The share of images that a mixture with each alpha keeps whatever g says, if these are h's robust margins."""
    sure = np.where(right, margins, -1.0)
    return (sure[:, None] >= needed_margin(alphas)[None]).mean(0)


def margin_figures(right: np.ndarray, margins: np.ndarray) -> dict[str, Any]:
    """Of the images that stand: the mean margin, its quantiles, and the alphas that they need."""
    stands = margins[right].astype(np.float64)
    if not len(stands):
        return {"stands": 0.0, "mean": None, "quantiles": {}, "alphas": {}}
    found = np.quantile(stands, QUANTILES)
    return {
        "stands": float(right.mean()),
        "mean": float(stands.mean()),
        "quantiles": dict(zip(map(str, QUANTILES), found.tolist(), strict=True)),
        "alphas": dict(zip(map(str, QUANTILES), needed_alpha(found).tolist(), strict=True)),
    }
