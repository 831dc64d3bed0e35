from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from adaptive_smoothing.evaluation.tradeoff import load_tradeoff
from adaptive_smoothing.report.tradeoff.page import NO_BREAK
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.report.tradeoff_run import write_run

VOID = {"meta", "img", "source", "link", "br"}


class Reader(HTMLParser):
    """Checks that elements are closed in order. Keeps the cells of tables, the text, and the addresses to be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.addresses += [value or "" for key, value in attrs if key in ("src", "srcset", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        data = data.replace(NO_BREAK, " ")
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)
        if "style" not in self.open:
            self.text.append(data)


@pytest.fixture
def read(full_page: str) -> Reader:
    return Reader(full_page)


def test_the_page_is_complete_and_loads_nothing(read: Reader) -> None:
    assert not read.open
    assert len(read.addresses) == 8  # four figures, light and dark
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.addresses)


def test_the_numbers_of_the_result_are_on_the_page(read: Reader, report: Report) -> None:
    run = report.main
    figures = {row[0]: row[1:] for row in read.rows if row}
    for model, name in (("g", "g, standard"), ("h", "h, robust")):
        clean, attacked = run.rows[f"clean_{model}"], run.rows["std_g" if model == "g" else "rob_h"]
        assert figures[name][0].startswith(f"{100 * clean.mean():.1f} %")
        assert figures[name][1].startswith(f"{100 * (clean & attacked).mean():.1f} %")
    worst = 100 * float(np.interp(0.753, run.mix_alphas, run.accuracy("worst")))
    assert figures["mixture, α = 0.753"][1] == f"≈{worst:.1f} %"
    gap = run.rows["rob_h_gap"][run.rows["rob_h"]]
    assert figures["h, PGD-20"][1:3] == [f"{gap.mean():.3f}", f"{np.median(gap):.3f}"]
    text = " ".join(read.text)
    assert f"{worst:.1f} % under all three attacks of this run" in text
    assert "with 91.2 % (89.1 to 93.1) on 800 validation images" in text


def test_the_alphas_table_follows_the_curves(read: Reader, report: Report) -> None:
    (row,) = [row for row in read.rows if row and row[0] == "0.8"]
    run, at_clean, at_mix = report.main, 80, list(report.main.mix_alphas).index(0.8)
    accuracy = [run.accuracy(curve)[at_clean] for curve in ("clean", "std", "rob")]
    assert row[1:4] == [f"{100 * value:.1f} %" for value in accuracy]
    assert row[4] == f"{100 * run.accuracy('mix')[at_mix]:.1f} %"
    low, high = 100 * run.intervals("worst")[at_mix]
    assert row[5] == f"{100 * run.accuracy('worst')[at_mix]:.1f} % ({low:.1f} to {high:.1f})"


def test_lines_do_not_break_inside_a_number_or_an_option(full_page: str) -> None:
    text = full_page.replace(NO_BREAK, "_")
    assert "with 91.2_% (89.1_to_93.1) on 800 validation images" in text
    assert '<th scope="row">mixture, α_=_0.753</th>' in text
    assert "evaluate with <code>--attack</code> adaptive" in text


def test_text_of_users_is_escaped(full_page: str) -> None:
    assert "<a>" not in full_page and "&lt;a&gt; &amp; b" in full_page and "<h1>g &amp; h</h1>" in full_page


def test_the_folder_of_a_plain_run_can_be_read_back(report: Report, tmp_path: Path) -> None:
    path = write_run(tmp_path / "new", Report(report.main))
    names = {path.name for path in path.parent.iterdir()}
    assert names == {"result.json", "rows.npz", "page.html"} | {
        f"{name}.{kind}" for name in ("figure", "gaps") for kind in ("png", "svg")
    }
    assert np.array_equal(load_tradeoff(path.parent).rows["mix"], report.main.rows["mix"])
    text = " ".join(Reader(path.read_text(encoding="utf-8")).text)
    assert "chosen" not in text and "live run" not in text


def test_every_table_can_be_scrolled(full_page: str) -> None:
    assert full_page.count('<div class="wide" tabindex="0"><table>') == full_page.count("<table>") > 3
