"""Write the run folder of a report: rows, figures, page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from adaptive_smoothing.evaluation.tradeoff import save_tradeoff
from adaptive_smoothing.report.figures import gap_figure, png, side_by_side, svg, tradeoff_figure
from adaptive_smoothing.report.page import TITLE, like_the_paper, write_page
from adaptive_smoothing.report.panels import comparison_panel
from adaptive_smoothing.report.sentences import Report
from adaptive_smoothing.results import atomic


def figures(report: Report) -> dict[str, Figure]:
    """Return the figures of a run folder, by the names of their files."""
    paper = like_the_paper(report.main.settings)
    found = {
        "figure": tradeoff_figure(report.main, report.live, report.alpha, paper=paper),
        "gaps": gap_figure(report.main, report.alpha),
    }
    if report.learned is not None:
        found["learned"] = side_by_side([comparison_panel(report.learned.comparison)])
    return found


def write_run(folder: str | Path, report: Report, title: str = TITLE) -> Path:
    """Write result.json, rows.npz, the figures as PNG and SVG, and page.html; return the path of the page.

    The rows are those of the live run if there is one.
    """
    folder = Path(folder)
    choice = {"choice": asdict(report.choice)} if report.choice else {}
    save_tradeoff(folder, report.live or report.main, {**choice, **report.facts})
    for name, figure in figures(report).items():
        with atomic(folder / f"{name}.png") as partial:
            partial.write_bytes(png(figure))
        with atomic(folder / f"{name}.svg") as partial:
            partial.write_text(svg(figure), encoding="utf-8")
    return write_page(folder / "page.html", report, title)
