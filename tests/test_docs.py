import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tables"


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)  # as `python docs/tables` has it
        return importlib.import_module("pages")


def test_the_tables_of_the_documents_are_those_of_the_result_files(tables):
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- table: " in text
        assert tables.rewritten(text) == text, f"{page.name} is out of date: python docs/tables"


def test_a_number_changed_by_hand_is_noticed(tables):
    text = tables.PAGES[0].read_text(encoding="utf-8")
    assert tables.rewritten(text.replace("| compact-robust |", "| compact-robust, better |")) == text


def test_an_unknown_mark_is_named(tables):
    with pytest.raises(KeyError, match=r"training.* pair, curve.* got the mark 'curvs compact'"):
        tables.rewritten("<!-- table: curvs compact -->\n<!-- end -->")
