"""The run folder of a report: rows, figures, page."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from adaptive_smoothing.evaluation.stored import RESULT, save_tradeoff
from adaptive_smoothing.report.figures import gap_figure, png, side_by_side, svg, tradeoff_figure
from adaptive_smoothing.report.page import TITLE, like_the_paper, write_page
from adaptive_smoothing.report.panels import comparison_panel
from adaptive_smoothing.report.story import Report
from adaptive_smoothing.results import atomic


def make_folder(folder: Path, *, overwrite: bool) -> Path:
    """Make the folder before the run: what is wrong with it should not come out after an hour of work."""
    if not overwrite and (folder / RESULT).exists():
        raise FileExistsError(
            f"expected a folder without a run, got {folder}, which holds one: choose another --out, or replace it "
            "with --overwrite"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A run that is replaced must not stand beside one that is not finished.
        (folder / RESULT).unlink(missing_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            f"expected a folder that can be written to, got {folder} ({error.strerror}): choose another --out"
        ) from error
    return folder


def figures(report: Report) -> dict[str, Figure]:
    """The figures of a run folder, by the names of their files."""
    paper = like_the_paper(report.main.settings)
    found = {
        "figure": tradeoff_figure(report.main, report.live, report.alpha, paper=paper),
        "gaps": gap_figure(report.main, report.alpha),
    }
    if report.learned is not None:
        found["learned"] = side_by_side([comparison_panel(report.learned.comparison)])
    return found


def write_run(folder: str | Path, report: Report, title: str = TITLE) -> Path:
    """Write result.json, rows.npz, figure and gaps as PNG and SVG, and page.html; returns the page's path.

    The rows are those of the run that was made now: the live one where there is one.
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
