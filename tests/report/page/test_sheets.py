"""Arrays as text, which data.js reads."""

import base64

import numpy as np
import pytest

from adaptive_smoothing.report.page.sheets import FULL, array, probabilities


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([-1, 0, 32767]), "i2"),
        (np.array([-1, 40_000]), "i4"),
        (np.array([0, 7], np.uint8), "u2"),
        (np.array([65_535], np.uint16), "u2"),
        (np.array([70_000], np.uint32), "u4"),
        (np.array([0.5, np.inf, -1e30]), "f4"),
        (np.array([], int), "i2"),
    ],
)
def test_arrays_keep_their_values(values, kind):
    found = array(values)
    assert found["type"] == kind and found["length"] == len(values)
    assert np.array_equal(np.frombuffer(base64.b64decode(found["bytes"]), f"<{kind}"), values.astype(f"<{kind}"))


def test_truth_values_take_a_bit_each():
    values = np.arange(19) % 3 == 0
    found = array(values)
    raw = np.frombuffer(base64.b64decode(found["bytes"]), np.uint8)
    assert found["type"] == "bits" and len(raw) == 3
    assert np.array_equal(np.unpackbits(raw, bitorder="little")[: found["length"]].astype(bool), values)


def test_probabilities_have_an_error_below_one_in_a_hundred_thousand():
    values = np.random.default_rng(0).dirichlet(np.ones(10), 30)
    raw = np.frombuffer(base64.b64decode(probabilities(values)["bytes"]), "<u2").reshape(30, 10)
    assert np.abs(raw / FULL - values).max() < 1e-5
