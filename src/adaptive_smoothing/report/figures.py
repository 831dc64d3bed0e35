"""The paper's figure STD+ROB for any pair of models, and the confidence gaps that explain it.

A panel draws onto axes; a figure puts panels side by side. Nothing here touches pyplot, so drawing leaves no state
behind and needs no display.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adaptive_smoothing.evaluation.tradeoff import Tradeoff

Panel = Callable[[Axes], None]


@dataclass(frozen=True)
class Style:
    """Colours by Okabe and Ito, which colour-blind readers can tell apart, each with a line of its own."""

    ink: str = "#1a1a1a"
    faint: str = "#6b6b6b"
    grid: str = "#e3e3e3"
    paper: str = "#ffffff"
    clean: str = "#0072b2"
    std: str = "#b5578b"
    rob: str = "#009e73"
    mix: str = "#d55e00"


LIGHT = Style()
DARK = Style("#ececec", "#a3a3a3", "#3a3d42", "#1b1d21", "#56b4e9", "#e39ac4", "#2fc79b", "#ff8c42")

CURVES = {
    "clean": ("clean images", "-"),
    "rob": ("ROB: attack made on h", "-."),
    "std": ("STD: attack made on g", "--"),
    "mix": ("MIX: attack on the mixture", "-"),
}
# Table tab:confidence and table tab:compare of the paper: clean and PGD-20 accuracy of its ResNet-18 pair.
PAPER = {"g": (0.9528, 0.0012), "h": (0.8353, 0.4417)}


def tradeoff_figure(
    stored: Tradeoff,
    live: Tradeoff | None = None,
    chosen_alpha: float | None = None,
    *,
    style: Style = LIGHT,
    paper: bool = True,
) -> Figure:
    """Left: accuracy against alpha. Right: clean against attacked accuracy.

    `stored` is drawn as lines, `live` as points with 95 % intervals in the same colours. `paper` adds the paper's
    own models, which makes sense for CIFAR-10 at Linf 8/255.
    """
    return side_by_side(
        [
            curves_panel(stored, live, chosen_alpha, style),
            frontier_panel(stored, chosen_alpha, style, paper=paper),
        ],
        style,
    )


def gap_figure(tradeoff: Tradeoff, alpha: float | None = None, *, style: Style = LIGHT) -> Figure:
    """How confident h (left) and g (right) are where they are right and wrong, clean and attacked."""
    return side_by_side(
        [gap_panel(tradeoff, "h", alpha, style), gap_panel(tradeoff, "g", None, style)], style
    )


def side_by_side(panels: Sequence[Panel], style: Style = LIGHT) -> Figure:
    """One figure of one or more panels."""
    with matplotlib.rc_context(_settings(style)):
        figure = Figure(figsize=(5.9 * len(panels), 4.5), layout="constrained")
        for position, panel in enumerate(panels, start=1):
            panel(figure.add_subplot(1, len(panels), position))
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """The same file for the same figure: without a date, and with ids that are no random numbers."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "adaptive_smoothing", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def curves_panel(stored: Tradeoff, live: Tradeoff | None, chosen_alpha: float | None, style: Style) -> Panel:
    """Accuracy against alpha: clean and under the three attacks."""

    def draw(axes: Axes) -> None:
        for curve, (label, line) in CURVES.items():
            color = getattr(style, curve)
            marker = {"marker": "o", "markersize": 3.5} if curve == "mix" else {}
            axes.plot(
                _alphas(stored, curve), stored.accuracy(curve), line, color=color, label=label, **marker
            )
            if live is not None:
                _points(axes, live, curve, color)
        _chosen_line(axes, chosen_alpha, style)
        axes.set_xticks(np.linspace(0, 1, 6), ["0\ng alone", "0.2", "0.4", "0.6", "0.8", "1\nh alone"])
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.02, 1.08))
        axes.set(xlabel="mixing weight α", ylabel="accuracy", title=_images(stored, live))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    return draw


def frontier_panel(
    stored: Tradeoff, chosen_alpha: float | None, style: Style, *, paper: bool = True
) -> Panel:
    """Clean accuracy against accuracy under MIX: what a step of alpha costs, and what it buys."""

    def draw(axes: Axes) -> None:
        clean, mix = _frontier(stored)
        axes.plot(clean, mix, "-o", color=style.mix, markersize=4, label="the mixture, α from 0 to 1")
        _straight(axes, clean, mix, style)
        _alpha_labels(axes, stored, style)
        if paper:
            _paper_points(axes, style)
        if chosen_alpha is not None:
            at = (
                np.interp(chosen_alpha, stored.mix_alphas, clean),
                np.interp(chosen_alpha, stored.mix_alphas, mix),
            )
            axes.plot(*at, marker="*", markersize=15, color=style.clean, markeredgecolor=style.paper, linestyle="",
                      label=f"chosen, α = {chosen_alpha:.3f}", zorder=5)  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.margins(0.12)
        axes.set_ylim(bottom=-0.02)
        axes.set(xlabel="clean accuracy", ylabel="accuracy under MIX", title="What robustness costs")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    return draw


def gap_panel(tradeoff: Tradeoff, model: str, alpha: float | None, style: Style) -> Panel:
    """Histogram of the confidence gap of h or g: right and wrong, under its own attack and clean.

    With `alpha`, a line at (1 - alpha) / alpha: above it, nothing g says can overrule h in the mixture.
    """
    attack = "rob" if model == "h" else "std"
    groups = {
        "h": {"right under attack": (f"{attack}_h", True), "wrong on clean images": ("clean_h", False)},
        "g": {"right on clean images": ("clean_g", True), "wrong under attack": (f"{attack}_g", False)},
    }[model]

    def draw(axes: Axes) -> None:
        for (label, (key, right)), color, hatch in zip(
            groups.items(), (style.clean, style.mix), ("", "///"), strict=True
        ):
            gaps = tradeoff.rows[f"{key}_gap"][tradeoff.rows[key] == right]
            _histogram(axes, gaps, label, color, hatch)
        if alpha is not None and alpha >= 0.5:
            _overrule_line(axes, (1 - alpha) / alpha, alpha, style)
        axes.set_xlim(0, 1)
        axes.set_ylim(top=1.25 * axes.get_ylim()[1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        name = "h, the robust classifier" if model == "h" else "g, the standard classifier"
        axes.set(xlabel="confidence gap: first class over second", ylabel="share of these images", title=name)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=1)

    return draw


def _settings(style: Style) -> dict[str, Any]:
    return {
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
        "grid.color": style.grid,
        "grid.linewidth": 0.8,
        "hatch.linewidth": 0.6,
        "text.color": style.ink,
        "axes.labelcolor": style.ink,
        "axes.edgecolor": style.faint,
        "axes.titlecolor": style.ink,
        "xtick.color": style.ink,
        "ytick.color": style.ink,
        "axes.facecolor": style.paper,
        "figure.facecolor": style.paper,
        "savefig.facecolor": style.paper,
    }


def _alphas(tradeoff: Tradeoff, curve: str) -> np.ndarray:
    return tradeoff.mix_alphas if curve == "mix" else tradeoff.alphas


def _images(stored: Tradeoff, live: Tradeoff | None) -> str:
    if live is None:
        return f"Accuracy on {stored.images:,} images"
    return f"Lines: {stored.images:,} images, stored. Points: {live.images:,}, live"


def _points(axes: Axes, live: Tradeoff, curve: str, color: str) -> None:
    """The live run, at the alphas its MIX attack was made at: more would hide the lines behind them."""
    alphas, accuracy, bounds = _alphas(live, curve), live.accuracy(curve), live.intervals(curve)
    keep = [int(np.abs(alphas - alpha).argmin()) for alpha in live.mix_alphas]
    # Side by side, so that intervals of curves that meet can be told apart.
    shift = {"clean": -0.0075, "rob": -0.0025, "std": 0.0025, "mix": 0.0075}[curve]
    _error_bars(axes, alphas[keep] + shift, accuracy[keep], bounds[keep], color)


def _error_bars(axes: Axes, x: np.ndarray, y: np.ndarray, bounds: np.ndarray, color: str) -> None:
    below_above = np.stack([y - bounds[:, 0], bounds[:, 1] - y]).clip(0)
    axes.errorbar(x, y, yerr=below_above, fmt="s", color=color, markersize=4.5, elinewidth=1.1, capsize=2)


def _chosen_line(axes: Axes, alpha: float | None, style: Style) -> None:
    if alpha is None:
        return
    axes.axvline(alpha, color=style.ink, linewidth=1.2, linestyle=":")
    # Above the curves, and inside the panel whatever alpha is.
    side = "left" if alpha < 0.2 else "right"
    text = f" chosen α = {alpha:.3f} "
    axes.text(alpha, 1.075, text, ha=side, va="top", fontsize=9, color=style.ink)


def _frontier(tradeoff: Tradeoff) -> tuple[np.ndarray, np.ndarray]:
    """Clean and MIX accuracy at the alphas where the MIX attack was made."""
    return np.interp(tradeoff.mix_alphas, tradeoff.alphas, tradeoff.accuracy("clean")), tradeoff.accuracy(
        "mix"
    )


def _straight(axes: Axes, clean: np.ndarray, mix: np.ndarray, style: Style) -> None:
    """What a coin that picks g or h would get: the mixture has to be above."""
    axes.plot(
        [clean[0], clean[-1]],
        [mix[0], mix[-1]],
        ":",
        color=style.faint,
        linewidth=1.2,
        label="g or h by a coin",
    )


def _alpha_labels(axes: Axes, tradeoff: Tradeoff, style: Style) -> None:
    """Alphas beside some points, far enough from each other to be read."""
    clean, mix = _frontier(tradeoff)
    width, height = np.ptp(clean) or 1, np.ptp(mix) or 1
    taken: list[tuple[float, float]] = []
    for alpha, x, y in sorted(zip(tradeoff.mix_alphas, clean, mix, strict=True), key=_importance):
        place = (x - clean.min()) / width, (y - mix.min()) / height
        if all(abs(place[0] - a) > 0.16 or abs(place[1] - b) > 0.09 for a, b in taken):
            taken.append(place)
            name = {0: "g, α = 0", 1: "h, α = 1"}.get(alpha, f"{alpha:g}")
            axes.annotate(name, (x, y), (6, 4), textcoords="offset points", ha="left", va="bottom", fontsize=9,
                          color=style.ink)  # fmt: skip


def _importance(point: tuple[float, float, float]) -> tuple[bool, float]:
    """The ends first, then round numbers."""
    alpha = point[0]
    return alpha not in (0, 1), round(alpha * 10 % 1, 6)


def _paper_points(axes: Axes, style: Style) -> None:
    marks = zip(PAPER.items(), ("^", "v"), strict=True)
    for (model, (clean, attacked)), marker in marks:
        label = f"the paper's {model}, ResNet-18"
        axes.plot(
            clean, attacked, marker, color=style.faint, markerfacecolor="none", markersize=7, label=label
        )


def _histogram(axes: Axes, gaps: np.ndarray, label: str, color: str, hatch: str) -> None:
    if not len(gaps):
        axes.plot([], [], color=color, label=f"{label}: no image")
        return
    share = np.full(len(gaps), 1 / len(gaps))
    middle = float(np.median(gaps))
    name = f"{label}: {len(gaps):,} images, median {middle:.2f}"
    bins = np.linspace(0, 1, 21)
    axes.hist(gaps, bins, weights=share, histtype="stepfilled", facecolor=color + "40", edgecolor=color, hatch=hatch,
              linewidth=1.5, label=name)  # fmt: skip
    axes.axvline(middle, ymax=0.8, color=color, linewidth=1.4, linestyle="--")


def _overrule_line(axes: Axes, gap: float, alpha: float, style: Style) -> None:
    axes.axvline(gap, color=style.ink, linewidth=1.2, linestyle=":")
    side, shift = ("left", 0.012) if gap < 0.55 else ("right", -0.012)
    text = f"right of this, g cannot\noverrule h at α = {alpha:.3f}"
    axes.text(gap + shift, 0.97, text, transform=axes.get_xaxis_transform(), ha=side, va="top", fontsize=9)
