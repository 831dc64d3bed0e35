"""Hook of the site: a notebook is a page with its code, and with the text and the pictures that are stored in it.

`links.py` adds the pages; the source of each is the notebook itself.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

HEADING = re.compile(r"^#+ (?:\d+\. )?(.+)$", re.MULTILINE)
NOTE = "*This page is `notebooks/{}` of the repository, with its stored output.*"
OUTPUT = "{ .text .no-copy .output }"  # assets/site.css sets it apart from the code


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures of the notebooks."""
    for page in list(files.documentation_pages()):
        if page.abs_src_path.endswith(".ipynb"):
            for name, data in converted(Path(page.abs_src_path))[1].items():
                files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def on_page_read_source(page: Any, **more: Any) -> str | None:
    """Read a notebook as Markdown."""
    source = Path(page.file.abs_src_path)
    return converted(source)[0] if source.suffix == ".ipynb" else None


def converted(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their path next to the page."""
    heading, parts, pictures = path.stem, [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            heading = [heading, *HEADING.findall(source)][-1]
            continue
        parts.append(_fenced(source, "python"))
        for shown in _outputs(cell):
            if isinstance(shown, str):
                parts.append(_fenced(shown, OUTPUT))
                continue
            name = f"{path.stem}/{len(pictures) + 1}.png"
            pictures[name] = shown
            parts.append(f"![Picture: {heading}]({name})")
    return "\n\n".join([parts[0], NOTE.format(path.name), *parts[1:]]) + "\n", pictures


def _outputs(cell: dict[str, Any]) -> Iterator[str | bytes]:
    """Yield what a cell shows, in order: text in one piece up to the next picture, and pictures."""
    for kind, group in groupby(map(_shown, cell["outputs"]), type):
        if kind is str:
            yield "".join(group)
        else:
            yield from group


def _shown(output: dict[str, Any]) -> str | bytes:
    """Return the picture or the text of an output."""
    data = output.get("data", {})
    if "image/png" in data:
        return b64decode("".join(data["image/png"]))
    return "".join(output["text"] if "text" in output else data["text/plain"])


def _fenced(text: str, kind: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{kind}\n{text.rstrip()}\n{fence}"
