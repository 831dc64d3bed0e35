"""Robust margins, as docs/tables shows them."""

import numpy as np
import pytest

CORRECT = np.array([True, True, True, False])
MARGINS = np.array([0.9, 0.5, 0.1, 0.8])


@pytest.fixture(scope="module")
def margins(docs_tables):
    return docs_tables("margins")


def test_a_mixture_is_robust_where_h_leads_by_the_needed_margin(margins):
    alphas = np.array([0.5, 0.6, 0.8, 1.0])
    assert margins.held_share(CORRECT, MARGINS, alphas).tolist() == [0, 0.25, 0.5, 0.75]


def test_figures_are_those_of_robust_images(margins):
    found = margins.margin_figures(CORRECT, MARGINS)
    assert found["stands"] == 0.75 and found["mean"] == pytest.approx(0.5)
    assert found["quantiles"]["0.5"] == 0.5 and found["alphas"]["0.5"] == pytest.approx(2 / 3)
    assert margins.margin_figures(~CORRECT & False, MARGINS)["mean"] is None
