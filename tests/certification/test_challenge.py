"""Attacks break no valid certificate, and break certificates that promise too much."""

import numpy as np
import pytest
from half_spaces import AlwaysOne

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certificates import Certificates

# All images are on one side of a plane.
pytestmark = pytest.mark.filterwarnings("ignore:all .* have the label")


@pytest.fixture(scope="module")
def challenge(load_benchmark):
    return load_benchmark("challenge").challenge


@pytest.fixture(scope="module")
def data(plane):
    return plane.data(6, first=0.2)


def enlarged(found, by):
    return Certificates({**found.rows, "radius": found.rows["radius"] + by * found.certified}, found.settings)


@pytest.mark.parametrize("kind", ["lipschitz", "hard votes", "soft votes"])
@pytest.mark.parametrize("alpha", [1.0, 0.75])
def test_valid_certificates_hold_and_enlarged_ones_break(challenge, plane, data, kind, alpha):
    h = plane if kind == "lipschitz" else ads.SmoothedClassifier(plane, 0.3, hard=kind == "hard votes")
    mixed = ads.MixedClassifier(AlwaysOne(), h, alpha=alpha)
    found = ads.certify(mixed, data, samples=None if kind == "lipschitz" else 3000)
    assert found.certified.sum() >= 3
    for norm in ("L2", "Linf"):
        result = challenge(mixed, data, found, norm=norm, samples=2000)
        assert result.broken == 0 and len(result.rows["index"]) == found.certified.sum()
        assert (result.rows["distance"] <= 1 + 1e-4).all()
        assert norm == "Linf" or (result.rows["distance"] > 0.9).all()
    broken = challenge(mixed, data, enlarged(found, 0.25), samples=2000)
    assert broken.rows["broken_with_some_g"].sum() >= 0.6 * found.certified.sum()
    assert broken.rows["broken"].sum() >= 0.6 * found.certified.sum()  # its own g is the worst


def test_an_attack_needs_a_norm_that_the_certificate_covers(challenge, plane, data):
    found = ads.certify(plane, data, norm="Linf")
    assert challenge(plane, data, found, norm="Linf").broken == 0
    with pytest.raises(ValueError, match="attack in Linf"):
        challenge(plane, data, found, norm="L2")


def test_without_certificates_nothing_is_broken(challenge, plane, data):
    found = ads.certify(plane, data)
    none = Certificates({**found.rows, "certified": np.zeros(6, dtype=bool)}, found.settings)
    assert challenge(plane, data, none).summary()["images"] == 0
