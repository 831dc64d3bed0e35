"""Certificates that hold are not broken, and ones that do not hold are."""

import numpy as np
import pytest
import torch
from adaptive_smoothing.certification.challenge import challenge
from half_spaces import AgainstMargin, HalfSpaces

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certificates import Certificates


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=4.0)


@pytest.fixture(scope="module")
def data(plane):
    images = (plane.at(torch.linspace(0.2, 0.9, 6)).clamp(0, 1) * 255).round() / 255
    return ads.from_tensors(images, (plane.distance(images) < 0).long())


def made_larger(found, by):
    return Certificates({**found.rows, "radius": found.rows["radius"] + by * found.certified}, found.settings)


def variants(plane):
    return {
        "lipschitz": plane,
        "votes": ads.SmoothedClassifier(plane, 0.3, hard=True),
        "means": ads.SmoothedClassifier(plane, 0.3),
    }


@pytest.mark.parametrize("kind", ["lipschitz", "votes", "means"])
@pytest.mark.parametrize("alpha", [1.0, 0.75])
def test_what_is_certified_stands_and_what_is_claimed_beyond_falls(plane, data, kind, alpha):
    h = variants(plane)[kind]
    mixed = ads.MixedClassifier(AgainstMargin(), h, alpha=alpha)
    found = ads.certify(mixed, data, **({} if kind == "lipschitz" else {"samples": 3000}))
    assert found.certified.sum() >= 3
    for norm in ("L2", "Linf"):
        tried = challenge(mixed, data, found, norm=norm, samples=2000)
        assert tried.broken == 0 and len(tried.rows["index"]) == found.certified.sum()
        assert (tried.rows["distance"] <= 1 + 1e-4).all()
    assert (challenge(mixed, data, found, samples=2000).rows["distance"] > 0.9).all()
    lie = challenge(mixed, data, made_larger(found, 0.25), samples=2000)
    assert lie.rows["broken_with_some_g"].sum() >= 0.6 * found.certified.sum()
    assert lie.rows["broken"].sum() >= 0.6 * found.certified.sum()  # its g is the worst there is


def test_an_attack_needs_a_norm_that_the_certificate_is_about(plane, data):
    found = ads.certify(plane, data, norm="Linf")
    assert challenge(plane, data, found, norm="Linf").broken == 0
    with pytest.raises(ValueError, match="attack in Linf"):
        challenge(plane, data, found, norm="L2")


def test_nothing_certified_is_nothing_broken(plane, data):
    found = ads.certify(plane, data)
    none = Certificates({**found.rows, "certified": np.zeros(6, dtype=bool)}, found.settings)
    assert challenge(plane, data, none).summary()["images"] == 0
