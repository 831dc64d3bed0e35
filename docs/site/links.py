"""Hook of the site: pages that are not in docs/, and links to other files of the repository.

Links are written as paths in the repository, so that they work on a code host. In the site, README.md is the home page,
CONTRIBUTING.md, CHANGELOG.md and the notebooks are pages, and any other file that is linked to is copied to
`repository/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {
    f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)")
# A browser shows these; it would offer others for download.
SHOWN = {".png", ".svg", ".jpg", ".html", ".json"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and the files that pages link to."""
    for source, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in list(files.documentation_pages()):
        for path in _linked(Path(page.abs_src_path)):
            if path.is_file() and files.get_file_from_path(copied := _copied(path)) is None:
                files.append(File.generated(config, copied, abs_src_path=str(path)))
    return files


def on_page_markdown(text: str, page: Any, **more: Any) -> str:
    """Replace links to files outside of docs/ by links inside of the site."""
    source, here = Path(page.file.abs_src_path), Path(page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        path = _resolved(source, found[1])
        if path.is_relative_to(DOCS) and source.is_relative_to(DOCS):
            return found[1]
        inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else _copied(path)
        return Path(os.path.relpath(inside, here)).as_posix() if path.exists() else found[1]

    return LINK.sub(replaced, text)


def _linked(page: Path) -> Iterator[Path]:
    """Yield the paths outside of docs/ that a page links to."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path = _resolved(page, link)
        if path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
            yield path


def _resolved(page: Path, link: str) -> Path:
    return Path(os.path.normpath(page.parent / link))


def _copied(path: Path) -> str:
    """Return the path in the site of a file outside of docs/."""
    inside = os.path.relpath(path, ROOT)
    if inside in PAGES:
        return PAGES[inside]
    return f"repository/{inside}" + ("" if path.suffix in SHOWN else ".txt")
