from collections.abc import Callable

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.tables import markdown
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.report.tradeoff.tables import gap_table, models_table, tables


def test_every_row_of_a_table_in_markdown_has_the_same_columns(report: Report) -> None:
    lines = markdown(models_table(report.main, report.alpha)).splitlines()
    assert lines[0].startswith("**Accuracy on 2,000 images") and lines[3] == "| --- | ---: | ---: |"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_table_of_the_live_run_comes_last(report: Report) -> None:
    assert [table.title for table in tables(report)][-1] == "The live run: 40 images"


def test_a_mean_over_a_few_images_is_not_shown(make: Callable[..., Tradeoff]) -> None:
    run = make(2000)
    run.rows["std_g"][:] = False
    run.rows["std_g"][:3] = run.rows["clean_g"][:3] = True
    rows = {row[0]: row for row in gap_table(run).rows}
    assert rows["g, PGD-20"][2:4] == ("–", "–") and rows["g, clean"][2] != "–"
