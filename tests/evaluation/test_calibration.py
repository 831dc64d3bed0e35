"""The calibration error of predictions whose confidence and accuracy are known."""

import numpy as np
import pytest

from adaptive_smoothing.evaluation.calibration import BINS, Calibration


def test_bins_computed_by_hand():
    """Three bins of two: (0, 1/2] with one of two correct at 0.3 and 0.5, (1/2, 1] with three of three at 0.8."""
    found = Calibration.measure(np.array([0.3, 0.5, 0.8, 0.8, 0.8]), np.array([True, False, True, True, True]), bins=2)
    assert found.images.tolist() == [2, 3]
    assert found.confidence == pytest.approx([0.4, 0.8]) and found.accuracy == pytest.approx([0.5, 1.0])
    assert found.error == pytest.approx(2 / 5 * 0.1 + 3 / 5 * 0.2)
    assert found.summary() == pytest.approx({"error": 0.16, "confidence": 0.64, "accuracy": 0.8})


def test_a_certain_classifier_is_as_wrong_as_it_errs():
    correct = np.arange(10) < 7
    certain = Calibration.measure(np.ones(10, np.float32), correct)
    assert certain.error == pytest.approx(0.3) and len(certain.images) == BINS and certain.images[-1] == 10
    assert np.isnan(certain.accuracy[:-1]).all()


def test_perfect_calibration_has_no_error_and_overconfidence_has_its_size():
    chance = np.random.default_rng(0)
    confidence = chance.uniform(0.1, 1, 200_000)
    correct = chance.random(200_000) < confidence
    assert Calibration.measure(confidence, correct).error < 0.01
    # Correct in 60 % of the cases at every confidence of 0.8.
    correct = chance.random(200_000) < 0.6
    assert Calibration.measure(np.full(200_000, 0.8), correct).error == pytest.approx(0.2, abs=0.01)


def test_every_confidence_has_a_bin():
    edges = np.array([0.0, 1e-9, 1 / 15, 1.0], np.float32)
    assert Calibration.measure(edges, edges > 0).images.sum() == 4
