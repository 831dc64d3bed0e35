"""Figures of a trade-off, and their panels. A panel is a function that draws on axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.figures import Panel, error_bars, legend_below, percent_axes, side_by_side
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tradeoff.report import PAPER_GAPS, Report, base_accuracies, like_the_paper

# Label and line of each curve.
CURVES = {
    "clean": ("clean images", "-"),
    "rob": ("ROB: attack made on h", "-."),
    "std": ("STD: attack made on g", "--"),
    "mix": ("MIX: attack on the mixture", "o-"),
}


def figures(report: Report) -> dict[str, Figure]:
    """Return the figures of a report, by the names of their files."""
    paper = like_the_paper(report.main.settings)
    return {
        "figure": tradeoff_figure(report.main, report.alpha, paper=paper),
        "gaps": gap_figure(report.main, report.alpha),
    }


def tradeoff_figure(tradeoff: Tradeoff, chosen_alpha: float | None = None, *, paper: bool = True) -> Figure:
    """Return the paper's figure STD+ROB (left), and clean against attacked accuracy (right).

    Args:
        paper: add the models of the paper, which were measured on CIFAR-10 at Linf 8/255.
    """
    return side_by_side([curves_panel(tradeoff, chosen_alpha), frontier_panel(tradeoff, chosen_alpha, paper=paper)])


def gap_figure(tradeoff: Tradeoff, alpha: float | None = None) -> Figure:
    """Return histograms of the confidence gaps of h (left) and g (right), for correct and incorrect predictions."""
    return side_by_side([gap_panel(tradeoff, "h", alpha), gap_panel(tradeoff, "g")])


def curves_panel(tradeoff: Tradeoff, chosen_alpha: float | None = None, style: Style = LIGHT) -> Panel:
    """Return a panel of accuracy against alpha, clean and under the three attacks, with 95 % intervals."""

    def draw(axes: Axes) -> None:
        for curve, (label, line) in CURVES.items():
            look: dict[str, Any] = {"color": getattr(style, curve), "label": label, "markersize": 3.5}
            axes.plot(tradeoff.alphas_of(curve), tradeoff.accuracy(curve), line, **look)
            _intervals(axes, tradeoff, curve, look["color"])
        if chosen_alpha is not None:
            _chosen_line(axes, chosen_alpha, style)
        axes.set_xticks(np.linspace(0, 1, 6), ["0\ng alone", "0.2", "0.4", "0.6", "0.8", "1\nh alone"])
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.02, 1.08), xlabel="mixing weight α", ylabel="accuracy")
        axes.set_title(f"Accuracy on {tradeoff.images:,} images, with 95 % intervals")
        legend_below(axes)

    return draw


def frontier_panel(
    tradeoff: Tradeoff, chosen_alpha: float | None = None, style: Style = LIGHT, *, paper: bool = True
) -> Panel:
    """Return a panel of accuracy under all three attacks against clean accuracy."""

    def draw(axes: Axes) -> None:
        clean, mix = _frontier(tradeoff)
        line = "o-" if len(mix) > 1 else "o"
        axes.plot(clean, mix, line, color=style.mix, markersize=4, label=f"the mixture, {alpha_words(tradeoff)}")
        # A random choice between g and h for each image gives this line; a useful mixture lies above it.
        ends = np.array([[part.value for part in base_accuracies(tradeoff, model)] for model in ("g", "h")]).T
        axes.plot(*ends, ":", color=style.faint, linewidth=1.2, label="random choice of g or h")
        if chosen_alpha is not None:
            _chosen_star(axes, tradeoff, chosen_alpha, style)
        _alpha_labels(axes, tradeoff)
        if paper:
            _paper_points(axes, style)
        percent_axes(axes, PercentFormatter(1, decimals=0))
        axes.margins(0.12)
        axes.set_ylim(bottom=-0.02)
        axes.set(xlabel="clean accuracy", ylabel="accuracy under attack", title="Robust against clean accuracy")
        legend_below(axes)

    return draw


def gap_panel(tradeoff: Tradeoff, model: str, alpha: float | None = None, style: Style = LIGHT) -> Panel:
    """Return a histogram of the confidence gap of h or g, for correct and for incorrect predictions.

    With `alpha`, a line marks (1 - alpha) / alpha: above it g cannot overrule h in the mixture.
    """
    name, *groups = {
        "h": ("robust", ("correct under attack", "rob_h"), ("incorrect on clean images", "clean_h")),
        "g": ("standard", ("correct on clean images", "clean_g"), ("incorrect under attack", "std_g")),
    }[model]

    def draw(axes: Axes) -> None:
        looks = ((True, style.clean, ""), (False, style.mix, "///"))
        for (label, key), (correct, color, hatch) in zip(groups, looks, strict=True):
            _histogram(axes, tradeoff.rows[f"{key}_gap"][tradeoff.rows[key] == correct], label, color, hatch)
        axes.set_xlim(-0.005, 1.005)  # bars and lines at both ends are drawn in full
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        if alpha is not None and alpha >= 0.5:
            axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1])
            axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
            _overrule_line(axes, alpha, style)
        axes.set(xlabel="confidence gap: first class over second", ylabel="share of these images")
        axes.set_title(f"{model}, the {name} classifier")
        legend_below(axes, columns=1)

    return draw


def alpha_words(tradeoff: Tradeoff) -> str:
    """Return the range of alphas at which the mixture was attacked."""
    first, last = tradeoff.mix_alphas[0], tradeoff.mix_alphas[-1]
    return f"α = {first:.3g}" if first == last else f"α from {first:.3g} to {last:.3g}"


def _intervals(axes: Axes, run: Tradeoff, curve: str, color: str) -> None:
    """Draw the 95 % intervals at the alphas of the MIX attack. At all 101 alphas they would hide the lines."""
    alphas = run.alphas_of(curve)
    keep = [int(np.abs(alphas - alpha).argmin()) for alpha in run.mix_alphas]
    # Shifted sideways, so that intervals of curves that meet do not overlap.
    shift = {"clean": -0.009, "rob": -0.003, "std": 0.003, "mix": 0.009}[curve]
    look: dict[str, Any] = {"fmt": "none", "color": color, "elinewidth": 1.1}
    error_bars(axes, alphas[keep] + shift, run.rows[curve][keep], **look)


def _chosen_line(axes: Axes, alpha: float, style: Style) -> None:
    axes.axvline(alpha, color=style.ink, linewidth=1.2, linestyle=":")
    # Above the curves, and inside the panel for every alpha.
    side = "left" if alpha < 0.3 else "right"
    axes.text(alpha, 1.075, f" chosen α = {alpha:.3f} ", ha=side, va="top", fontsize=9)


def _chosen_star(axes: Axes, tradeoff: Tradeoff, alpha: float, style: Style) -> None:
    place = (np.interp(alpha, tradeoff.mix_alphas, values) for values in _frontier(tradeoff))
    look: dict[str, Any] = {"color": style.clean, "markersize": 15, "markeredgecolor": style.paper, "zorder": 5}
    axes.plot(*place, "*", label=f"chosen, α = {alpha:.3f}", **look)


def _frontier(tradeoff: Tradeoff) -> tuple[np.ndarray, np.ndarray]:
    """Return clean and worst-case accuracy at the alphas of the MIX attack."""
    clean = np.interp(tradeoff.mix_alphas, tradeoff.alphas, tradeoff.accuracy("clean"))
    return clean, tradeoff.accuracy("worst")


def _alpha_labels(axes: Axes, tradeoff: Tradeoff) -> None:
    """Label the points that are far enough apart to be read with their alphas; first the ends, then tenths.

    Alphas between 0 and 0.5 get no label: the mixture is hardly more robust than g there, so the points overlap.
    """
    clean, mix = _frontier(tradeoff)
    width, height = np.ptp(clean) or 1, np.ptp(mix) or 1
    taken: list[tuple[float, float]] = []
    points = zip(tradeoff.mix_alphas, clean, mix, strict=True)
    for alpha, x, y in sorted(points, key=lambda point: (point[0] not in (0, 1), round(point[0] * 10 % 1, 6))):
        place = (x - clean.min()) / width, (y - mix.min()) / height
        if not 0 < alpha < 0.5 and all(abs(place[0] - a) > 0.16 or abs(place[1] - b) > 0.09 for a, b in taken):
            taken.append(place)
            name = {0: "g, α = 0", 1: "h, α = 1"}.get(alpha, f"{alpha:.2g}")
            offset, side, above = ((-9, 0), "right", "center") if alpha == 0 else ((7, 3), "left", "bottom")
            axes.annotate(name, (x, y), offset, textcoords="offset points", ha=side, va=above, fontsize=9)


def _paper_points(axes: Axes, style: Style) -> None:
    for model, marker in (("g", "^"), ("h", "v")):
        clean, attacked = PAPER_GAPS[f"{model} clean"][0], PAPER_GAPS[f"{model} pgd"][0]
        look: dict[str, Any] = {"color": style.faint, "markerfacecolor": "none", "markersize": 7}
        axes.plot(clean, attacked, marker, label=f"the paper's {model}, ResNet-18", **look)


def _histogram(axes: Axes, gaps: np.ndarray, label: str, color: str, hatch: str) -> None:
    if not len(gaps):
        axes.plot([], [], color=color, label=f"{label}: no image")
        return
    middle = float(np.median(gaps))
    look: dict[str, Any] = {"histtype": "stepfilled", "facecolor": color + "40", "edgecolor": color, "linewidth": 1.5}
    name = f"{label}: {len(gaps):,} image{'s' * (len(gaps) != 1)}, median {middle:.2f} (dashed)"
    share = np.full(len(gaps), 1 / len(gaps))
    axes.hist(gaps, np.linspace(0, 1, 21).tolist(), weights=share, hatch=hatch, label=name, **look)
    axes.axvline(middle, ymax=0.78, color=color, linewidth=1.4, linestyle="--")


def _overrule_line(axes: Axes, alpha: float, style: Style) -> None:
    gap = (1 - alpha) / alpha
    axes.axvline(gap, color=style.ink, linewidth=1.2, linestyle=":")
    side, shift = ("left", 0.012) if gap < 0.55 else ("right", -0.012)
    text = f"right of this line, g cannot\noverrule h at α = {alpha:.3f}"
    axes.text(gap + shift, 0.98, text, transform=axes.get_xaxis_transform(), ha=side, va="top", fontsize=9)
