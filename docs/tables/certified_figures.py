"""Figures of certification: the paper's fig:certified_pareto and fig:certified_radii, our bound, margins."""

from __future__ import annotations

import numpy as np
from certified_tables import CERTIFIED, margins_of, matched
from margins import held_share
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from adaptive_smoothing.report.certified import frontier_panel
from adaptive_smoothing.report.figures import Panel, png, side_by_side
from adaptive_smoothing.report.style import LIGHT, Style

# h alone, and the h whose mixtures match its clean accuracy, as in the paper.
LEFT = ("gaussian-050", "gaussian-100")
RIGHT = ("gaussian-025", "gaussian-050", "gaussian-100")
LIPSCHITZ = ("lipschitz-8", "lipschitz-4")


def paper_figure(theorem: str) -> bytes:
    """Draw one theorem of the paper for soft votes: certificates as solid lines, plug-in estimates as dotted ones."""
    panels = [
        frontier_panel(
            matched("soft", *names, theorem=theorem), LIGHT, title=f"As accurate as {names[0]}", estimates=True
        )
        for names in (LEFT, RIGHT)
    ]
    return png(side_by_side(panels))


def our_figure() -> bytes:
    """Draw our bound, for hard votes and for networks with a proven Lipschitz constant."""
    panels = [
        frontier_panel(matched("hard", *names), LIGHT, title=f"As accurate as {names[0]}")
        for names in (LEFT, (*RIGHT, *LIPSCHITZ), LIPSCHITZ)
    ]
    return png(side_by_side(panels))


def margins_figure(pair: str, verdict: str) -> bytes:
    """Draw the margins of h under attack, and the share of images that they protect in a mixture with any g."""
    found = margins_of(pair, verdict)
    return png(side_by_side([_margins_panel(found, LIGHT), _held_panel(found, LIGHT)]))


def _margins_panel(found: dict[str, tuple[np.ndarray, np.ndarray]], style: Style) -> Panel:
    def draw(axes: Axes) -> None:
        for (name, (right, margins)), colour in zip(found.items(), (style.clean, style.mix), strict=True):
            at = np.sort(margins[right])
            axes.step(at, np.arange(1, len(at) + 1) / len(at), color=colour, label=f"{name}: {len(at):,} robust")
        axes.set_xlabel("margin of h under attack, where it is robust")
        axes.set_ylabel("share with at most this margin")
        axes.set_title("Confidence of h under attack")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend()

    return draw


def _held_panel(found: dict[str, tuple[np.ndarray, np.ndarray]], style: Style) -> Panel:
    def draw(axes: Axes) -> None:
        alphas = np.linspace(0.5, 1, 201)
        for (name, (right, margins)), colour in zip(found.items(), (style.clean, style.mix), strict=True):
            axes.plot(alphas, held_share(right, margins, alphas), color=colour, label=name)
        axes.set_xlabel("α")
        axes.set_ylabel("correct with any g, estimated by the attack")
        axes.set_title("Images that the lemma protects in a mixture")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend()

    return draw


def draw_all() -> None:
    drawn = {
        "pareto": paper_figure("lipschitz"),
        "radii": paper_figure("paper"),
        "ours": our_figure(),
        "margins": margins_figure("resnet18", "verdicts/h-margin"),
    }
    for name, figure in drawn.items():
        (CERTIFIED / f"{name}.png").write_bytes(figure)
