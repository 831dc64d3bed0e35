"""docs/paper.md: every row is complete, no label is listed twice, and the code that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "adaptive_smoothing"
PAGE = ROOT / "docs" / "paper.md"
# The sections whose rows have a number and a label, with the number of rows that the paper asks for.
NUMBERED = {"Equations": 12, "Statements": 8, "Figures": 12, "Tables": 7}
# Where a row says that there is no code.
WITHOUT_CODE = ("proof only", "not implemented")
# A file of the package, a colon, and a name in it, as in `certification/radius.py: needed_margin`.
CODE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the cells of the table of each section, with its head and without the line below it."""
    found = {}
    for section in text.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        if rows:
            found[section.partition("\n")[0]] = [rows[0], *rows[2:]]
    return found


@pytest.fixture(scope="module")
def sections() -> dict[str, list[list[str]]]:
    return tables(PAGE.read_text(encoding="utf-8"))


@cache
def names_in(file: str) -> set[str]:
    """Return the functions, classes, methods (`Class.method`) and constants that a file of the package defines."""
    found = set()
    for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_every_numbered_section_has_its_rows_and_no_cell_is_empty(sections: dict[str, list[list[str]]]):
    assert {title: len(sections[title]) - 1 for title in NUMBERED} == NUMBERED
    for title, (head, *rows) in sections.items():
        for row in rows:
            assert len(row) == len(head), f"{title}: {row} has {len(row)} cells under {len(head)} heads"
            assert all(row), f"{title}: {row} has an empty cell"


def test_numbers_and_labels_are_listed_once(sections: dict[str, list[list[str]]]):
    rows = [row for title in NUMBERED for row in sections[title][1:]]
    labels = [row[1] for row in rows]
    assert all(re.fullmatch(r"`[\w:+]+`", label) for label in labels)
    assert len(set(labels)) == len(labels)
    for title in NUMBERED:
        numbers = [row[0] for row in sections[title][1:]]
        assert len(set(numbers)) == len(numbers)


def test_every_row_names_code_or_says_that_there_is_none(sections: dict[str, list[list[str]]]):
    for title, (head, *rows) in sections.items():
        for row in rows:
            code = row[head.index("code")]
            assert CODE.search(code) or code.startswith(WITHOUT_CODE), f"{title}: {row[0]} names {code!r}"


def test_the_code_that_the_page_names_exists():
    named = CODE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 50
    missing = [f"{file}: {name}" for file, name in named if not (PACKAGE / file).exists() or name not in names_in(file)]
    assert not missing, f"docs/paper.md names {missing}"


def test_a_wrong_name_would_be_noticed():
    found = names_in("certification/radius.py")
    assert {"needed_margin", "SMOOTHING_THEOREMS"} <= found
    assert "needed_margins" not in found
    assert "LocalEstimate.certify" in names_in("certification/local_lipschitz.py")


def test_stored_results_that_the_page_names_exist():
    named = re.findall(r"`(results/[\w./-]+)`", PAGE.read_text(encoding="utf-8"))
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]
