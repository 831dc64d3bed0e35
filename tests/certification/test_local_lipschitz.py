"""Local estimates on a plane, where the largest changes of the probabilities are known."""

import pytest
import torch
from half_spaces import HalfSpaces

import adaptive_smoothing as ads
from adaptive_smoothing.certification.local_lipschitz import LocalEstimate

INDEX = torch.arange(4)


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=3.0)


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.1, 0.3, -0.5, 0.8]))


def test_local_constants_of_a_plane_are_found(plane, images):
    """Along the normal of the plane, one probability falls as the other rises."""
    eps = 0.05
    found = LocalEstimate(robust=plane, threat=ads.L2(eps)).certify(images, INDEX)
    distance = plane.distance(images).abs()
    exact = (torch.sigmoid(6 * distance) - torch.sigmoid(6 * (distance - eps))) / eps
    assert found["constants"] == pytest.approx(exact[:, None].expand(-1, 2).numpy(), rel=0.02)
    assert (found["radius"] == 0).all()
    assert found["estimate"].tolist() == [eps, eps, eps, eps]


def test_a_local_estimate_is_its_radius_or_zero(plane, images):
    found = LocalEstimate(robust=plane, threat=ads.L2(0.2)).certify(images, INDEX)
    assert found["estimate"].tolist() == [0, 0.2, 0.2, 0.2]
    less = LocalEstimate(robust=plane, threat=ads.L2(0.2), alpha=0.7).certify(images, INDEX)
    assert less["estimate"].tolist() == [0, 0, 0.2, 0.2]
