import sys
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.figures import png, side_by_side, svg
from adaptive_smoothing.report.style import DARK
from adaptive_smoothing.report.tradeoff.figures import curves_panel, frontier_panel, gap_figure, tradeoff_figure
from adaptive_smoothing.report.tradeoff.report import Report


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(label)]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def test_the_curves_are_the_accuracies(report: Report) -> None:
    left, right = tradeoff_figure(report.main, report.alpha).axes
    alphas, accuracy = line(left, "clean images")
    assert np.array_equal(alphas, report.main.alphas)
    assert np.array_equal(accuracy, report.main.accuracy("clean"))
    assert np.array_equal(line(left, "MIX")[1], report.main.accuracy("mix"))
    assert np.array_equal(line(right, "the mixture")[1], report.main.accuracy("worst"))
    assert len(left.containers) == 4  # one set of error bars per curve
    assert any("chosen α = 0.753" in text.get_text() for text in left.texts)


def test_the_attacked_alphas_have_intervals(make: Callable[..., Tradeoff]) -> None:
    run = make(40, mix_alphas=(0, 0.5, 1))
    left = tradeoff_figure(run).axes[0]
    ends = np.concatenate([np.array(bars[2][0].get_segments())[:, :, 1] for bars in left.containers])
    assert len(ends) == 12
    for low_high in np.concatenate([run.intervals("mix"), run.intervals("clean")[[0, -1]]]):
        assert np.isclose(ends, low_high).all(1).any()


@pytest.mark.parametrize(
    ("alphas", "words", "style"), [((0.5,), "α = 0.5", "None"), ((0.5, 0.9), "α from 0.5 to 0.9", "-")]
)
def test_the_frontier_names_its_alphas(make: Callable, alphas: tuple, words: str, style: str) -> None:
    right = tradeoff_figure(make(40, mix_alphas=alphas)).axes[1]
    (drawn,) = [line for line in right.get_lines() if line.get_label() == f"the mixture, {words}"]
    assert drawn.get_linestyle() == style


def test_the_papers_models_are_left_out_where_they_do_not_belong(run: Tradeoff) -> None:
    legends = [
        [text.get_text() for text in tradeoff_figure(run, paper=paper).axes[1].get_legend().get_texts()]
        for paper in (True, False)
    ]
    assert [any("paper" in label for label in labels) for labels in legends] == [True, False]


def test_the_gap_figure_separates_correct_and_incorrect_predictions(run: Tradeoff) -> None:
    h, g = gap_figure(run, alpha=0.8).axes
    labels = [text.get_text() for text in h.get_legend().get_texts()]
    median = np.median(run.rows["rob_h_gap"][run.rows["rob_h"]])
    assert f"correct under attack: {run.rows['rob_h'].sum():,} images, median {median:.2f} (dashed)" in labels
    assert f"incorrect on clean images: {(~run.rows['clean_h']).sum():,} images" in " ".join(labels)
    assert any("α = 0.800" in text.get_text() for text in h.texts) and not g.texts


def test_a_model_that_is_never_correct_is_drawn(make: Callable[..., Tradeoff]) -> None:
    run = make(5)
    run.rows["rob_h"][:] = False
    labels = [text.get_text() for text in gap_figure(run).axes[0].get_legend().get_texts()]
    assert "correct under attack: no image" in labels


def visible_texts(figure: Figure) -> list:
    """Every label that is drawn, with its box in pixels."""
    FigureCanvasAgg(figure).draw()
    found = []
    for axes in figure.axes:
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        labels = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_legend().get_texts()]
        found += [text for text in (*axes.texts, *ticks, *labels) if text.get_text().strip()]
    return found


@pytest.mark.parametrize("alpha", [0.02, 0.5, 0.93])
def test_labels_are_readable_and_do_not_overlap(report: Report, alpha: float) -> None:
    for figure in (tradeoff_figure(report.main, alpha), gap_figure(report.main, alpha)):
        texts = visible_texts(figure)
        assert min(text.get_fontsize() for text in texts) >= 9
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
        for position, (name, box) in enumerate(boxes):
            for other, other_box in boxes[position + 1 :]:
                assert not box.overlaps(other_box), f"{name!r} overlaps {other!r}"


def test_figures_are_saved_as_png_and_svg(run: Tradeoff) -> None:
    assert png(tradeoff_figure(run)).startswith(b"\x89PNG")
    panels = [curves_panel(run, style=DARK), frontier_panel(run, style=DARK)]
    drawing, again = (svg(side_by_side(panels, DARK)) for _ in range(2))
    assert "<svg" in drawing and drawing == again
    assert "http" not in drawing.split("<g ", 1)[1].replace("http://www.w3.org/1999/xlink", "")
    assert DARK.paper in drawing


def test_drawing_leaves_no_state(run: Tradeoff) -> None:
    gap_figure(run)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
