"""`adaptive-smoothing report RUN...`: one HTML page of one or several runs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import screen, show_page
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.results import check_new_file
from adaptive_smoothing.runs.folder import PAGE


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or folders with runs inside.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default page.html in RUN; for several runs, runs/page.html.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    open_page: opt.OpenPage = False,
) -> None:
    """Write one page that compares runs: slider, images, charts, tables; it opens offline."""
    if out is not None and out.suffix != ".html":
        raise ValueError(f"expected --out as the name of an HTML file, got {out}: for example --out {out}/{PAGE}")
    found = read_runs(runs)
    path = out or (Path(runs[0]) if len(found) == 1 else Path("runs")) / PAGE
    check_new_file(path, overwrite=True)
    console = screen()
    console.print(f"Runs on the page: {'; '.join(run.name for run in found)}.", markup=False)
    show_page(console, write_page(path, found, title))
    print_result({"page": str(path), "runs": [run.name for run in found]})
    if open_page:
        webbrowser.open(path.resolve().as_uri())
