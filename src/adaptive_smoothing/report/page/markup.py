"""Texts and tables as HTML."""

from __future__ import annotations

import re
from html import escape

from adaptive_smoothing.report.tables import Table

NO_BREAK = "\N{NO-BREAK SPACE}"


def html_text(text: str) -> str:
    """Return the text for HTML. Lines do not break inside `90.1 %`, `α = 0.8`, `(89.1 to 90.8)` and `--option`."""
    joined = re.sub(r"(?<=[\dα]) (?=%|= |to \d)|(?<=[\dα] =) (?=\d)|(?<=\d to) (?=\d)", NO_BREAK, escape(text))
    return re.sub(r"(?<= )--[\w-]+", r"<code>\g<0></code>", joined)


def table_markup(table: Table) -> str:
    """Return a table with its title and its note. The scripts of the page add buttons that copy it."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "\n".join(_row(row) for row in table.rows)
    note = f'<p class="note">{html_text(table.note)}</p>' if table.note else ""
    return (
        f'<figure class="table"><figcaption>{escape(table.title)}</figcaption>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>{note}</figure>"
    )


def _row(row: tuple[str, ...]) -> str:
    figures = "".join(f"<td>{html_text(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{html_text(row[0])}</th>{figures}</tr>'
