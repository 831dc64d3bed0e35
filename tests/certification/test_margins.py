import numpy as np
import pytest
from adaptive_smoothing.certification.margins import held_share, margin_figures

RIGHT = np.array([True, True, True, False])
MARGINS = np.array([0.9, 0.5, 0.1, 0.8])


def test_a_mixture_keeps_what_leads_by_the_needed_margin():
    assert held_share(RIGHT, MARGINS, np.array([0.5, 0.6, 0.8, 1.0])).tolist() == [0, 0.25, 0.5, 0.75]


def test_figures_are_those_of_what_stands():
    found = margin_figures(RIGHT, MARGINS)
    assert found["stands"] == 0.75 and found["mean"] == pytest.approx(0.5)
    assert found["quantiles"]["0.5"] == 0.5 and found["alphas"]["0.5"] == pytest.approx(2 / 3)
    assert margin_figures(~RIGHT & False, MARGINS)["mean"] is None
