"""The site of the documentation: it is complete, and it builds without a warning."""

import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import VERBS, load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CLI = DOCS / "reference" / "cli.md"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDED = ("material", "mkdocstrings_handlers", "latex2mathml")


def test_the_navigation_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\ntheme:")[0]
    named = re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(named) == len(set(named))
    notebooks = {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}  # docs/site/notebooks.py makes these
    assert set(named) == pages | notebooks | {"changelog.md", "contributing.md"}  # the last two are not in docs/


def test_the_reference_has_every_public_name_once():
    pages = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference" / "api").glob("*.md"))]
    found = re.findall(
        r"^::: adaptive_smoothing\.(.+)\n    options:\n      heading: ads\.(\w+)$", "\n".join(pages), re.M
    )
    places = {name: place.replace(":", ".") for name, place in ads._PLACES.items()}
    assert sorted(name for _, name in found) == sorted(places)
    assert {name: place for place, name in found} == places


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_has_every_option_of_a_verb(verb: str):
    """`python docs/tables` writes the page; tests/test_docs.py checks that it is up to date."""
    text = CLI.read_text(encoding="utf-8")
    section = re.search(rf"^## {verb}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{verb} is missing: run python docs/tables"
    shared = text.partition("## demo")[0]
    for parameter in load(verb).params:
        for name in parameter.opts if parameter.opts[0].startswith("-") else [parameter.metavar or ""]:
            assert name.replace("|", "or") in section[1] + shared, (
                f"{name} of {verb} is missing: run python docs/tables"
            )


class Resources(HTMLParser):
    """Collects the addresses that a browser fetches when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        fetched = given.get("rel") in ("stylesheet", "preconnect", "preload", "icon") and tag == "link"
        address = given.get("href") if fetched else given.get("src") if tag in ("script", "img", "iframe") else None
        self.found += [address] if address else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning_and_has_links_to_the_files_of_the_repository(site: Path):
    assert (site / "index.html").exists() and (site / "guides" / "evaluating.html").exists()
    assert (site / "repository" / "results" / "headline.png").exists()
    assert "contributing.html#how-to-add-an-attack" in (site / "attacks.html").read_text(encoding="utf-8")


def test_the_site_needs_no_network(site: Path):
    for page in site.rglob("*.html"):
        parser = Resources()
        parser.feed(page.read_text(encoding="utf-8"))
        assert len(parser.found) > 2
        assert not [address for address in parser.found if "://" in address or address.startswith("//")], page.name


def test_the_reference_of_names_has_docstrings_and_examples(site: Path):
    text = (site / "reference" / "api" / "mixing.html").read_text(encoding="utf-8")
    assert "save_pretrained" in text and "with_alpha" in text  # own methods, and those of a base class
    assert text.count("&gt;&gt;&gt;") > 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_its_code_its_text_and_its_pictures(path: Path, site: Path):
    page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    shown = html.unescape(re.sub(r"<[^>]+>", "", page))
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [cell for cell in code if "".join(cell["source"]) not in shown]
    assert not [output for output in outputs if "".join(output.get("text", "")).rstrip() not in shown]
    stored = [b64decode("".join(output["data"]["image/png"])) for output in outputs if "data" in output]
    found = re.findall(rf'<img alt="Picture: [^"]+" src="({path.stem}/\d+\.png)"', page)
    assert len(stored) > 1 and [(site / "notebooks" / name).read_bytes() for name in found] == stored


def test_links_to_notebooks_lead_to_their_pages(site: Path):
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    links = {(page.name, link) for page, text in pages.items() for link in re.findall(r'href="([^"#]+)', text)}
    assert not [link for link in links if link[1].endswith((".ipynb", ".ipynb.txt"))]
    assert {("index.html", "notebooks/tour.html"), ("quick-start.html", "notebooks/own-models.html")} <= links
    assert "../guides/own-data.html" in pages[site / "notebooks" / "tour.html"]


def test_a_search_ranks_the_reference_of_names_lower(site: Path):
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    entries = json.loads(text.removeprefix("var __index = "))["docs"]
    lower = {entry["location"] for entry in entries if entry.get("boost", 1) < 1}
    assert lower == {entry["location"] for entry in entries if entry["location"].startswith("reference/api/")} != set()
