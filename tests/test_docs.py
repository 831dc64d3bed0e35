import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "adaptive_smoothing"
TABLES = ROOT / "docs" / "tables"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH = 120
MOST_LINES = {"README.md": 150, "results.md": 450}
MOST_TERMS = 50
SCREEN = 45


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TABLES)  # as in `python docs/tables`
        return importlib.import_module("pages")


def test_the_tables_and_values_of_the_documents_are_those_of_the_result_files(tables):
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.rewritten(text) == text, f"{page.name} is out of date: python docs/tables"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_mark_is_complete_and_does_not_begin_a_line(page: Path):
    """Markdown would show the rest of such a line as it is written, without its links."""
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- value: ") == len(re.findall(r"<!-- value: [^\n]+? -->[^\n<]+<!-- -->", text))
    assert not re.findall(r"^[ >-]*<!-- (?:value|-->)", text, re.MULTILINE)


def test_a_number_changed_by_hand_is_noticed(tables):
    begin, end = "<!-- table: frontier resnet18-fast -->\n", "<!-- end -->"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = page[page.index(begin) :].partition(end)[0] + end
    changed = re.sub(r"\d+\.\d+ \|\n", "0.01 |\n", table, count=1)
    assert changed != table
    assert tables.rewritten(changed) == table
    value = "<!-- value: clean g -->{}<!-- -->"
    assert tables.rewritten(value.format("99.9")) == value.format(tables.VALUES["clean"]("g"))


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


def test_a_section_of_the_results_fits_on_a_screen():
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    lengths = {section.partition("\n")[0]: len(section.splitlines()) for section in text.split("\n## ")[1:]}
    assert len(lengths) > 5
    assert not {title: lines for title, lines in lengths.items() if lines > SCREEN}


def test_the_log_has_the_newest_entries_first_and_an_index_of_them():
    page = ROOT / "docs" / "log.md"
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d{4}-\d\d-\d\d): (.+)$", text, re.MULTILINE)
    index = re.findall(r"^- (\d{4}-\d\d-\d\d), \[(.+?)\]", text, re.MULTILINE)
    assert index == headings
    assert [date for date, _ in headings] == sorted((date for date, _ in headings), reverse=True)
    assert max(map(len, text.splitlines())) <= WIDTH  # rows of tables as well


def test_the_files_that_contributors_are_sent_to_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w./-]+\.(?:py|toml|md))`", text) if "NAME" not in name}
    assert len(named) > 20
    missing = [name for name in named if not any((place / name).exists() for place in (ROOT, PACKAGE))]
    assert not missing, f"CONTRIBUTING.md names {missing}"


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
