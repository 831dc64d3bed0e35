from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from adaptive_smoothing.evaluation.tradeoff import Tradeoff, load_tradeoff
from adaptive_smoothing.report.page import like_the_paper
from adaptive_smoothing.report.run_folder import write_run
from adaptive_smoothing.report.sentences import Report, at, sentences, threat_words
from adaptive_smoothing.report.tables import cost_table, gap_table, markdown, models_table, tables

VOID = {"meta", "img", "source", "link", "br"}


class Reader(HTMLParser):
    """Checks that elements are closed in order; keeps cells of tables, the text, and what would be loaded."""

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


def test_sentences_say_when_mix_is_not_the_strongest(report: Report) -> None:
    assert "MIX is the strongest of them." in " ".join(sentences(report))
    report.main.rows["rob"][:] = False
    assert "MIX is not the strongest of them." in " ".join(sentences(report))


def test_sentences_name_the_stronger_attacks(report: Report) -> None:
    assert "evaluate with --preset adaptive" in " ".join(sentences(report))


def test_few_images_give_numbers_and_no_ratio(make: Callable[..., Tradeoff], report: Report) -> None:
    few, many = make(40, mix_alphas=(0, 0.753, 1)), make(400, mix_alphas=(0, 0.753, 1))
    h = few.rows["clean_h"].mean(), (few.rows["clean_h"] & few.rows["rob_h"]).mean()
    paragraphs = " ".join(sentences(replace(report, main=few, live=None)))
    assert f"h has {100 * h[0]:.1f} % and {100 * h[1]:.1f} %. So few images" in paragraphs
    assert "h's robust accuracy" not in paragraphs
    assert "% of h's robust accuracy" in " ".join(sentences(replace(report, main=many, live=None)))
    for curve in ("std", "rob", "mix"):
        many.rows[curve][:] = True
    assert "It keeps all of h's robust accuracy" in " ".join(sentences(replace(report, main=many, live=None)))


def test_sentences_name_the_split(report: Report) -> None:
    for data, words in (("cifar10/val", "validation images"), ("cifar10/test", "test images"), ("mine", "images")):
        report.main.settings["data"] = data
        paragraphs = list(sentences(report))
        assert paragraphs[0].startswith(f"On 2,000 {words}, the") and f"On the {words} the mixture is" in paragraphs[1]
        assert f"on 2,000 {words}" in markdown(cost_table(report.main, report.choice))


def test_an_interruption_comes_first(report: Report) -> None:
    cut = replace(report, facts={"interrupted": True})
    assert next(sentences(cut)) == "The live run was interrupted: its numbers are for the 40 images that were finished."
    assert next(sentences(replace(cut, live=None))).startswith("This run was interrupted")
    assert "interrupted" not in " ".join(sentences(report))


def test_a_run_without_confidence_gaps_has_sentences(report: Report) -> None:
    report.main.rows["rob_h"][:] = False
    assert "cannot show why" in " ".join(sentences(report))
    assert "–" in markdown(gap_table(report.main))


def test_between_measured_alphas_there_is_no_interval(report: Report) -> None:
    assert at(report.main, "mix", 0.753).bounds is None
    low, high = at(report.main, "mix", 0.75).bounds or (1, 0)
    assert low < at(report.main, "mix", 0.753).value < high


def test_threats_in_words() -> None:
    assert threat_words({"norm": "Linf", "eps": 8 / 255}) == "change every pixel by up to 8/255"
    assert threat_words({"norm": "Linf", "eps": 0.3}).endswith("up to 0.3")
    assert threat_words({"norm": "L2", "eps": 0.5}).endswith("L2 length up to 0.5")


def test_the_paper_is_compared_where_it_measured_the_same() -> None:
    same = {"data": "cifar10/test", "norm": "Linf", "eps": 8 / 255, "steps": 20}
    assert like_the_paper(same) and like_the_paper({**same, "data": "builtin/test"})
    assert not like_the_paper({**same, "eps": 4 / 255}) and not like_the_paper({**same, "data": "cifar100/test"})
    assert not like_the_paper({**same, "steps": 10})


def test_markdown(report: Report) -> None:
    lines = markdown(models_table(report.main, report.alpha)).splitlines()
    assert lines[0].startswith("**Accuracy on 2,000 images") and lines[3] == "| --- | ---: | ---: |"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert [table.title for table in tables(report)][-1] == "The live run: 40 images"


def test_every_table_can_be_scrolled(full_page: str) -> None:
    assert full_page.count('<div class="wide" tabindex="0"><table>') == full_page.count("<table>") > 3


def test_a_mean_over_a_few_images_is_not_shown(make) -> None:
    run = make(2000)
    run.rows["std_g"][:] = False
    run.rows["std_g"][:3] = run.rows["clean_g"][:3] = True
    rows = {row[0]: row for row in gap_table(run).rows}
    assert rows["g, PGD-20"][2:4] == ("–", "–") and rows["g, clean"][2] != "–"
