from collections.abc import Callable
from dataclasses import replace

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.tables import markdown
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.report.tradeoff.sentences import sentences, threat_words
from adaptive_smoothing.report.tradeoff.tables import choice_table, gap_table


def test_sentences_say_when_mix_is_not_the_strongest(report: Report) -> None:
    assert "MIX is the strongest of them." in " ".join(sentences(report))
    report.main.rows["rob"][:] = False
    assert "MIX is not the strongest of them." in " ".join(sentences(report))


def test_sentences_name_the_stronger_attacks(report: Report) -> None:
    assert "evaluate with --attack adaptive" in " ".join(sentences(report))


def test_few_images_give_numbers_and_no_ratio(make: Callable[..., Tradeoff], report: Report) -> None:
    few, many = make(40, mix_alphas=(0, 0.753, 1)), make(400, mix_alphas=(0, 0.753, 1))
    h = few.rows["clean_h"].mean(), (few.rows["clean_h"] & few.rows["rob_h"]).mean()
    paragraphs = " ".join(sentences(replace(report, main=few)))
    assert f"h has {100 * h[0]:.1f} % and {100 * h[1]:.1f} %. So few images" in paragraphs
    assert "the robust accuracy of h" not in paragraphs
    assert "% of the robust accuracy of h" in " ".join(sentences(replace(report, main=many)))
    for curve in ("std", "rob", "mix"):
        many.rows[curve][:] = True
    assert "It keeps all of the robust accuracy of h" in " ".join(sentences(replace(report, main=many)))


def test_sentences_name_the_split(report: Report) -> None:
    for data, words in (("cifar10/val", "validation images"), ("cifar10/test", "test images"), ("mine", "images")):
        report.main.settings["data"] = data
        paragraphs = list(sentences(report))
        assert paragraphs[0].startswith(f"On 2,000 {words}, the") and f"On the {words} the mixture is" in paragraphs[1]
        assert f"on 2,000 {words}" in markdown(choice_table(report.main, report.choice))


def test_an_interruption_comes_first(report: Report) -> None:
    cut = replace(report, facts={"interrupted": True})
    assert next(sentences(cut)) == "This run was interrupted: its numbers are for the 2,000 images that were finished."
    assert "interrupted" not in " ".join(sentences(report))


def test_a_run_without_confidence_gaps_has_sentences(report: Report) -> None:
    report.main.rows["rob_h"][:] = False
    assert "cannot show why" in " ".join(sentences(report))
    assert "–" in markdown(gap_table(report.main))


def test_threats_in_words() -> None:
    assert threat_words({"norm": "Linf", "eps": 8 / 255}) == "change every pixel by up to 8/255"
    assert threat_words({"norm": "Linf", "eps": 0.3}).endswith("up to 0.3")
    assert threat_words({"norm": "L2", "eps": 0.5}).endswith("L2 length up to 0.5")
