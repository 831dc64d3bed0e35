"""Hook of the site: a search lists explanations before the names of the library."""

from __future__ import annotations

from typing import Any

REFERENCE = "reference/api/"


def on_page_markdown(text: str, page: Any, **more: Any) -> None:
    """Lower the rank of the pages that consist of docstrings."""
    if page.file.src_uri.startswith(REFERENCE):
        page.meta["search"] = {"boost": 0.5}
