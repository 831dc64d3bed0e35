"""Write the run folder of a trade-off: rows, figures, page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from adaptive_smoothing.evaluation.tradeoff import save_tradeoff
from adaptive_smoothing.report.figures import png, svg
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.report.tradeoff.figures import figures
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.results import write_bytes, write_text
from adaptive_smoothing.runs.folder import PAGE


def write_run(folder: str | Path, report: Report, title: str | None = None) -> Path:
    """Write result.json, rows.npz, the figures as PNG and SVG, and the page; return the path of the page."""
    folder = Path(folder)
    choice = {"choice": asdict(report.choice)} if report.choice else {}
    save_tradeoff(folder, report.main, {**choice, **report.facts})
    for name, figure in figures(report).items():
        write_bytes(folder / f"{name}.png", png(figure))
        write_text(folder / f"{name}.svg", svg(figure))
    return write_page(folder / PAGE, read_runs([folder]), title)
