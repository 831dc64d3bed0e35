from adaptive_smoothing.report.tradeoff.report import Report, accuracy_at, like_the_paper


def test_between_measured_alphas_there_is_no_interval(report: Report) -> None:
    assert accuracy_at(report.main, "mix", 0.753).bounds is None
    low, high = accuracy_at(report.main, "mix", 0.75).bounds or (1, 0)
    assert low < accuracy_at(report.main, "mix", 0.753).value < high


def test_the_paper_is_compared_where_it_measured_the_same() -> None:
    same = {"data": "cifar10/test", "norm": "Linf", "eps": 8 / 255, "steps": 20}
    assert like_the_paper(same) and like_the_paper({**same, "data": "builtin/test"})
    assert not like_the_paper({**same, "eps": 4 / 255}) and not like_the_paper({**same, "data": "cifar100/test"})
    assert not like_the_paper({**same, "steps": 10})
