"""Tables and figures of certification."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from places import BENCHMARKS, RESULTS, sweep

from adaptive_smoothing.certification.margins import QUANTILES, held_share, margin_figures
from adaptive_smoothing.evaluation.stored import load_tradeoff
from adaptive_smoothing.evaluation.verdict import STANDS
from adaptive_smoothing.report.figures import png, side_by_side
from adaptive_smoothing.report.panels import Panel
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json, read_rows

CERTIFIED = RESULTS / "certified"


def coverage() -> Table:
    """How often bounds fail: benchmarks/coverage.py."""
    measured = read_json(BENCHMARKS / "coverage.json")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for row in measured["rows"]:
        width = "" if row["above the average"] is None else f" ({row['above the average']:.4f})"
        key = row["doubts"], row["failure probability"]
        cells.setdefault(key, {})[row["bound"]] = f"{100 * row['failed']:.2f}{width}"
    bounds = list(dict.fromkeys(row["bound"] for row in measured["rows"]))
    rows = tuple(
        (doubts, f"{100 * chance:g}", *(found.get(bound, "–") for bound in bounds))
        for (doubts, chance), found in cells.items()
    )
    title = f"{measured['runs']:,} simulated runs of {measured['samples']:,} samples: failed, % (above the average by)"
    return Table(title, ("doubts", "may fail, %", *bounds), rows)


def _margins(pair: str, verdict: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Whether h stands, and by how much, under PGD-20 (a sweep) and under AutoAttack (a verdict of preset margin)."""
    run, rows = load_tradeoff(sweep(pair)), read_rows(RESULTS / verdict / "rows.npz")
    return {
        "PGD-20": (run.rows["clean_h"] & run.rows["rob_h"], run.rows["rob_h_gap"]),
        "AutoAttack": (rows["fooled_by"] == STANDS, rows["attacked_gap"]),
    }


def needed(pair: str, verdict: str) -> Table:
    """Robust margins of h and the alphas that they need."""
    rows = []
    for name, (right, margins) in _margins(pair, verdict).items():
        found = margin_figures(right, margins)
        pairs = [f"{found['quantiles'][str(q)]:.3f} → {found['alphas'][str(q)]:.3f}" for q in QUANTILES]
        rows.append((name, f"{len(right):,}", f"{100 * found['stands']:.2f}", f"{found['mean']:.3f}", *pairs))
    columns = ("", "images", "h stands, %", "mean margin", *(f"{100 * q:g} % quantile → α" for q in QUANTILES))
    return Table("Margins of h where it stands, and the alpha that the lemma needs for each", columns, tuple(rows))


def margins_figure(pair: str, verdict: str) -> bytes:
    """Left: the margins that attacks have left. Right: what a mixture keeps because of them, whatever g says."""
    found = _margins(pair, verdict)
    return png(side_by_side([_margins_panel(found, LIGHT), _held_panel(found, LIGHT)]))


def _margins_panel(found: dict[str, tuple[np.ndarray, np.ndarray]], style: Style) -> Panel:
    def draw(axes: Axes) -> None:
        for (name, (right, margins)), colour in zip(found.items(), (style.clean, style.mix), strict=True):
            at = np.sort(margins[right])
            axes.step(at, np.arange(1, len(at) + 1) / len(at), color=colour, label=f"{name}: {len(at):,} stand")
        axes.set_xlabel("robust margin of h, where it stands")
        axes.set_ylabel("share with at most this margin")
        axes.set_title("How sure h is under attack")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend()

    return draw


def _held_panel(found: dict[str, tuple[np.ndarray, np.ndarray]], style: Style) -> Panel:
    def draw(axes: Axes) -> None:
        alphas = np.linspace(0.5, 1, 201)
        for (name, (right, margins)), colour in zip(found.items(), (style.clean, style.mix), strict=True):
            axes.plot(alphas, held_share(right, margins, alphas), color=colour, label=name)
        axes.set_xlabel("α")
        axes.set_ylabel("right with any g, as far as the attack can tell")
        axes.set_title("What the lemma keeps of it in a mixture")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend()

    return draw


def draw_all() -> None:
    CERTIFIED.mkdir(exist_ok=True)
    (CERTIFIED / "margins.png").write_bytes(margins_figure("resnet18", "verdicts/h-margin"))
