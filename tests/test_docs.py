import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "docs" / "tables"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 120
MOST_LINES = {"README.md": 150, "results.md": 450}
MOST_TERMS = 40


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TABLES)  # as in `python docs/tables`
        return importlib.import_module("pages")


def test_the_tables_of_the_documents_are_those_of_the_result_files(tables):
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- table: " in text
        assert tables.rewritten(text) == text, f"{page.name} is out of date: python docs/tables"


def test_a_number_changed_by_hand_is_noticed(tables):
    begin, end = "<!-- table: losses resnet18-losses -->\n", "<!-- end -->"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = page[page.index(begin) :].partition(end)[0] + end
    changed = re.sub(r"\| \d+\.\d+ \|\n", "| 0.001 |\n", table, count=1)
    assert changed != table
    assert tables.rewritten(changed) == table


def test_an_unknown_mark_is_named(tables):
    with pytest.raises(KeyError, match=r"headline.* curve.* got the mark 'curvs compact'"):
        tables.rewritten("<!-- table: curvs compact -->\n<!-- end -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_at_most_120_characters_long(page: Path):
    prose = [(number, line) for number, line in _outside_code(page) if not line.lstrip().startswith("|")]
    long = [number for number, line in prose if len(line) > WIDTH]
    assert not long, f"{page.name}: wrap the lines {long}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_point_to_files_and_headings_that_exist(page: Path):
    for _, line in _outside_code(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(file), f"{page.name} links to {target}"


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_a_page_is_short(name: str, most: int):
    (page,) = (page for page in PAGES if page.name == name)
    assert len(page.read_text(encoding="utf-8").splitlines()) <= most


def test_the_glossary_is_short_and_defines_each_term_once():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term for found in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE) for term in found.split(", ")]
    assert 20 <= len(re.findall(r"^- \*\*", text, re.MULTILINE)) <= MOST_TERMS
    assert len(terms) == len(set(terms))


def _outside_code(page: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of a page outside of code blocks."""
    found, in_code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            found.append((number, line))
    return found


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = [line.lstrip("# ") for _, line in _outside_code(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
