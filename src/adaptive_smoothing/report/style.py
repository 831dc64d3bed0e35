"""Colours and fonts of the figures, on light and on dark paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Style:
    """Colours of a figure, after Okabe and Ito: colour-blind readers can distinguish them."""

    ink: str = "#1a1a1a"
    faint: str = "#6b6b6b"
    grid: str = "#e3e3e3"
    paper: str = "#ffffff"
    clean: str = "#0072b2"
    std: str = "#b5578b"
    rob: str = "#009e73"
    mix: str = "#d55e00"

    def settings(self) -> Any:
        """Return settings for `matplotlib.rc_context`. No text is smaller than 9 points."""
        return {**_SETTINGS, **{key: getattr(self, colour) for key, colour in _COLOURS.items()}}


_SETTINGS = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.6,
}
_COLOURS = {
    "grid.color": "grid",
    "text.color": "ink",
    "axes.labelcolor": "ink",
    "axes.titlecolor": "ink",
    "xtick.color": "ink",
    "ytick.color": "ink",
    "axes.edgecolor": "faint",
    "axes.facecolor": "paper",
    "figure.facecolor": "paper",
}

LIGHT = Style()
DARK = Style("#ececec", "#a3a3a3", "#3a3d42", "#1b1d21", "#56b4e9", "#e39ac4", "#2fc79b", "#ff8c42")
