"""Write the page of one or several runs: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.report.page.content import content
from adaptive_smoothing.report.page.markup import html_text, table_markup
from adaptive_smoothing.report.page.runs import PageRun
from adaptive_smoothing.report.page.words import alarm_words, subtitle, tables_of, tiles, title_of, words
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import write_text

HERE = Path(__file__).parent
# In the order in which they use each other.
SCRIPTS = (
    "data.js",
    "charts.js",
    "export.js",
    "dial_chart.js",
    "dial.js",
    "image_set.js",
    "image_detail.js",
    "images.js",
    "results.js",
    "main.js",
)
STYLE = "page.css"


def write_page(
    path: str | Path,
    runs: Sequence[PageRun],
    title: str | None = None,
    summary: Iterable[str] = (),
    tables: Iterable[Table] = (),
) -> Path:
    """Write the page of these runs to a file, and return its path.

    Args:
        summary: sentences that come before those about each run.
        tables: tables that come before those of each run.
    """
    write_text(path, page(runs, title, summary, tables))
    return Path(path)


def page(
    runs: Sequence[PageRun], title: str | None = None, summary: Iterable[str] = (), tables: Iterable[Table] = ()
) -> str:
    """Return the page as HTML text."""
    if not runs:
        raise ValueError("expected one or more runs for a page, got none: pass what read_runs returns")
    read = {name: (HERE / name).read_text(encoding="utf-8") for name in ("template.html", STYLE, *SCRIPTS)}
    return Template(read["template.html"]).substitute(
        title=escape(title or title_of(runs)),
        subtitle=html_text(subtitle(runs)),
        style=read[STYLE],
        tiles="\n".join(_tile(*tile) for tile in tiles(runs)),
        words="\n".join(f"<p>{html_text(text)}</p>" for text in (*summary, *words(runs))),
        alarms="\n".join(_alarms(runs)),
        tables="\n".join((*map(table_markup, tables), *_tables(runs))),
        facts="\n".join(_facts(runs)),
        data=_json(content(runs)),
        script="\n".join(read[name] for name in SCRIPTS),
    )


def _json(value: Any) -> str:
    """Return JSON that may stand inside of a script element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _tile(name: str, figures: Mapping[str, str]) -> str:
    rows = "".join(f"<div><dt>{html_text(key)}</dt><dd>{html_text(text)}</dd></div>" for key, text in figures.items())
    return f'<div class="tile"><h3>{html_text(name)}</h3><dl>{rows}</dl></div>'


def _alarms(runs: Sequence[PageRun]) -> Iterator[str]:
    """Yield the alarms of the evaluations in words; what several runs have in common, once."""
    names: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for found in alarm_words(run):
            names.setdefault(found, []).append(run.name)
    for (kind, text), having in names.items():
        name = f"<strong>{html_text('; '.join(having))}:</strong> " if len(runs) > 1 else ""
        yield f'<li class="{kind}">{name}{html_text(text)}</li>'


def _tables(runs: Sequence[PageRun]) -> Iterator[str]:
    """Yield the tables of all runs, those of each run below its name if there are several."""
    for run in runs:
        found = tables_of(run)
        if len(runs) > 1 and found:
            yield f"<h3>{html_text(run.name)}</h3>"
        yield from map(table_markup, found)


def _facts(runs: Sequence[PageRun]) -> Iterator[str]:
    """Yield the command, the versions and all settings of each run."""
    for run in runs:
        settings = {} if isinstance(run.result, Comparison) else run.settings
        everything = {**run.facts, "models": run.models, "settings": settings}
        rows = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in _flat(everything))
        yield f"<details><summary>{html_text(run.name)}</summary><dl>{rows}</dl></details>"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested facts as pairs of texts."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}: ")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
