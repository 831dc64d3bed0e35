"""One self-contained HTML page: the report in words, the figures, the tables, and how it was made."""

from __future__ import annotations

import base64
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from adaptive_smoothing.report.figures import side_by_side, svg
from adaptive_smoothing.report.panels import (
    Panel,
    alpha_words,
    comparison_panel,
    curves_panel,
    frontier_panel,
    gap_panel,
)
from adaptive_smoothing.report.sentences import Report, at, base_accuracies, percent, sentences, threat_words
from adaptive_smoothing.report.style import DARK, LIGHT, Style
from adaptive_smoothing.report.tables import Table, tables
from adaptive_smoothing.results import atomic

TITLE = "Mixing an accurate and a robust classifier"
TEMPLATE = Path(__file__).with_name("page.html")


def write_page(path: str | Path, report: Report, title: str = TITLE) -> Path:
    """Write the page of `report` to `path`, and return the path. The file is complete or absent."""
    with atomic(path) as partial:
        partial.write_text(page(report, title), encoding="utf-8")
    return Path(path)


def page(report: Report, title: str = TITLE) -> str:
    """Return the page as HTML text."""
    settings = report.main.settings
    subtitle = f"{settings['data']}, {report.main.images:,} images. The attacker may {threat_words(settings)}."
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        tiles="\n".join(_tiles(report)),
        story="\n".join(f"<p>{escape(text)}</p>" for text in sentences(report)),
        figures="\n".join(_figures(report)),
        tables="\n".join(_table(table) for table in tables(report)),
        facts=_facts({"settings": settings, **report.facts}),
    )


def _tiles(report: Report) -> list[str]:
    found = [("g, standard", *base_accuracies(report.main, "g")), ("h, robust", *base_accuracies(report.main, "h"))]
    if report.alpha is not None:
        mixture = at(report.main, "clean", report.alpha), at(report.main, "worst", report.alpha)
        found.insert(1, (f"mixture, α = {report.alpha:.3f}", *mixture))
    return [
        f'<div class="tile{" ours" * name.startswith("mixture")}"><h2>{escape(name)}</h2>'
        f"<dl><dt>clean</dt><dd>{percent(clean.value)}</dd>"
        f"<dt>under attack</dt><dd>{percent(attacked.value)}</dd></dl></div>"
        for name, clean, attacked in found
    ]


def _figures(report: Report) -> list[str]:
    """Return each panel as a figure of its own, so that a narrow screen can show them below each other."""
    main, alpha = report.main, report.alpha
    panels: dict[str, Callable[[Style], Panel]] = {
        "Accuracy against the mixing weight α: clean, and under the STD, ROB and MIX attacks": (
            lambda style: curves_panel(main, report.live, alpha, style)
        ),
        f"Clean accuracy against accuracy under all three attacks, for {alpha_words(main)}": (
            lambda style: frontier_panel(main, alpha, style, paper=like_the_paper(main.settings))
        ),
        "Confidence of h: correct predictions under attack, and incorrect predictions on clean images": (
            lambda style: gap_panel(main, "h", alpha, style)
        ),
        "Confidence of g: correct predictions on clean images, and incorrect predictions under attack": (
            lambda style: gap_panel(main, "g", None, style)
        ),
    }
    if report.learned is not None:
        compared = report.learned.comparison
        caption = f"One α for all images, or one for each image: {compared.images:,} images under the strongest attacks"
        panels[caption] = lambda style: comparison_panel(compared, style)
    return [_figure(caption, panel) for caption, panel in panels.items()]


def like_the_paper(settings: dict[str, Any]) -> bool:
    """Return whether the paper's models were measured in the same way: CIFAR-10, PGD-20 at Linf 8/255."""
    same_images = settings["data"].split("/")[0] in ("builtin", "cifar10")
    same_ball = settings["norm"] == "Linf" and abs(settings["eps"] - 8 / 255) < 1e-6
    return same_images and same_ball and settings["steps"] == 20


def _figure(caption: str, panel: Callable[[Style], Panel]) -> str:
    drawings = (svg(side_by_side([panel(style)], style)).encode() for style in (LIGHT, DARK))
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}" for drawing in drawings)
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(caption)}" loading="lazy"></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "\n".join(_row(row) for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>{note}</section>"
    )


def _row(row: tuple[str, ...]) -> str:
    figures = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    chosen = ' class="chosen"' if "chosen" in row[0] or row[0].startswith("mixture") else ""
    return f'<tr{chosen}><th scope="row">{escape(row[0])}</th>{figures}</tr>'


def _facts(facts: dict[str, Any], prefix: str = "") -> str:
    return "\n".join(
        _facts(value, f"{prefix}{key}: ")
        if isinstance(value, dict)
        else f"<dt>{escape(prefix + str(key))}</dt><dd>{escape(str(value))}</dd>"
        for key, value in facts.items()
    )
