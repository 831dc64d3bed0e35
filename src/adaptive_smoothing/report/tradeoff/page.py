"""One self-contained HTML page: the report in words, the figures, the tables, and how it was made."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from adaptive_smoothing.report.comparison import comparison_panel
from adaptive_smoothing.report.figures import Panel, side_by_side, svg
from adaptive_smoothing.report.style import DARK, LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.tradeoff.figures import alpha_words, curves_panel, frontier_panel, gap_panel
from adaptive_smoothing.report.tradeoff.report import Report, accuracy_at, attack_name, base_accuracies, like_the_paper
from adaptive_smoothing.report.tradeoff.sentences import sentences, threat_words
from adaptive_smoothing.report.tradeoff.tables import tables
from adaptive_smoothing.results import percent

TITLE = "Mixing an accurate and a robust classifier"
NO_BREAK = "\N{NO-BREAK SPACE}"
TEMPLATE = Path(__file__).with_name("page.html")


def page(report: Report, title: str = TITLE) -> str:
    """Return the page as HTML text."""
    settings = report.main.settings
    subtitle = f"{settings['data']}, {report.main.images:,} images. The attacker may {threat_words(settings)}."
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        subtitle=_html(subtitle),
        tiles="\n".join(_tiles(report)),
        story="\n".join(f"<p>{_html(text)}</p>" for text in sentences(report)),
        figures="\n".join(_figures(report)),
        tables="\n".join(_table(table) for table in tables(report)),
        facts=_facts({"settings": settings, **report.facts}),
    )


def _tiles(report: Report) -> list[str]:
    found = [("g, standard", *base_accuracies(report.main, "g")), ("h, robust", *base_accuracies(report.main, "h"))]
    if report.alpha is not None:
        mixture = accuracy_at(report.main, "clean", report.alpha), accuracy_at(report.main, "worst", report.alpha)
        found.insert(1, (f"mixture, α = {report.alpha:.3f}", *mixture))
    return [
        f'<div class="tile{" ours" * name.startswith("mixture")}"><h2>{_html(name)}</h2>'
        f"<dl><dt>clean</dt><dd>{_html(percent(clean.value))}</dd>"
        f"<dt>under {attack_name(report.main)}</dt><dd>{_html(percent(attacked.value))}</dd></dl></div>"
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


def _figure(caption: str, panel: Callable[[Style], Panel]) -> str:
    drawings = (svg(side_by_side([panel(style)], style)).encode() for style in (LIGHT, DARK))
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}" for drawing in drawings)
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(caption)}" loading="lazy"></picture>'
        f"<figcaption>{_html(caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "\n".join(_row(row) for row in table.rows)
    note = f'<p class="note">{_html(table.note)}</p>' if table.note else ""
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>{note}</section>"
    )


def _row(row: tuple[str, ...]) -> str:
    figures = "".join(f"<td>{_html(cell)}</td>" for cell in row[1:])
    chosen = ' class="chosen"' if "chosen" in row[0] or row[0].startswith("mixture") else ""
    return f'<tr{chosen}><th scope="row">{_html(row[0])}</th>{figures}</tr>'


def _facts(facts: dict[str, Any], prefix: str = "") -> str:
    return "\n".join(
        _facts(value, f"{prefix}{key}: ")
        if isinstance(value, dict)
        else f"<dt>{escape(prefix + str(key))}</dt><dd>{escape(str(value))}</dd>"
        for key, value in facts.items()
    )


def _html(text: str) -> str:
    """Return the text for HTML. Lines do not break inside `90.1 %`, `α = 0.8`, `(89.1 to 90.8)` and `--option`."""
    joined = re.sub(r"(?<=[\dα]) (?=%|= |to \d)|(?<=[\dα] =) (?=\d)|(?<=\d to) (?=\d)", NO_BREAK, escape(text))
    return re.sub(r"(?<= )--[\w-]+", r"<code>\g<0></code>", joined)
