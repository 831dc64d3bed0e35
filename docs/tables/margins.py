"""Robust margins of h, and the alpha that lem:certified_radius needs for each.

The margin that is left after an attack is an upper estimate of the robust margin: a better attack leaves less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_smoothing.certification.radius import needed_alpha, needed_margin

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75)


def held_share(correct: np.ndarray, margins: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return the share of images on which a mixture with each alpha is robust for any g, given h's robust margins."""
    held = np.where(correct, margins, -1.0)
    return (held[:, None] >= needed_margin(alphas)[None]).mean(0)


def margin_figures(correct: np.ndarray, margins: np.ndarray) -> dict[str, Any]:
    """Return the share of robust images, the mean and the quantiles of their margins, and the alphas these need."""
    robust = margins[correct].astype(np.float64)
    if not len(robust):
        return {"stands": 0.0, "mean": None, "quantiles": {}, "alphas": {}}
    found = np.quantile(robust, QUANTILES)
    return {
        "stands": float(correct.mean()),
        "mean": float(robust.mean()),
        "quantiles": dict(zip(map(str, QUANTILES), found.tolist(), strict=True)),
        "alphas": dict(zip(map(str, QUANTILES), needed_alpha(found).tolist(), strict=True)),
    }
