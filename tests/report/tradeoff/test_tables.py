from collections.abc import Callable

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.tables import markdown
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.report.tradeoff.tables import gap_table, models_table, tables


def test_every_row_of_a_table_in_markdown_has_the_same_columns(report: Report) -> None:
    lines = markdown(models_table(report.main, report.alpha)).splitlines()
    assert lines[0].startswith("**Accuracy on 2,000 images") and lines[3] == "| --- | ---: | ---: |"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_alphas_table_follows_the_curves(report: Report) -> None:
    run, at_clean, at_mix = report.main, 80, list(report.main.mix_alphas).index(0.8)
    table = tables(report)[-1]
    assert table.title == "Accuracy against α: 2,000 images"
    (row,) = [row for row in table.rows if row[0] == "0.8"]
    assert row[1:4] == tuple(f"{100 * run.accuracy(curve)[at_clean]:.1f} %" for curve in ("clean", "std", "rob"))
    assert row[4] == f"{100 * run.accuracy('mix')[at_mix]:.1f} %"
    low, high = 100 * run.intervals("worst")[at_mix]
    assert row[5] == f"{100 * run.accuracy('worst')[at_mix]:.1f} % ({low:.1f} to {high:.1f})"


def test_a_mean_over_a_few_images_is_not_shown(make: Callable[..., Tradeoff]) -> None:
    run = make(2000)
    run.rows["std_g"][:] = False
    run.rows["std_g"][:3] = run.rows["clean_g"][:3] = True
    rows = {row[0]: row for row in gap_table(run).rows}
    assert rows["g, PGD-20"][2:4] == ("–", "–") and rows["g, clean"][2] != "–"
