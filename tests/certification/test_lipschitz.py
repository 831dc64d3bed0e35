"""Certificates from Lipschitz constants, on a plane, where the exact radius is known."""

import numpy as np
import pytest
import torch
from half_spaces import AlwaysOne, HalfSpaces

import adaptive_smoothing as ads
from adaptive_smoothing.certification.lipschitz import Lipschitz
from adaptive_smoothing.certification.radius import needed_margin

INDEX = torch.arange(4)


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=3.0)


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.1, 0.3, -0.5, 0.8]))


def test_the_radius_of_h_alone_is_the_distance_to_the_plane(plane, images):
    found = Lipschitz(robust=plane).certify(images, INDEX)
    assert found["radius"] == pytest.approx([0.1, 0.3, 0.5, 0.8], abs=1e-3)
    assert (found["radius"] < [0.1, 0.3, 0.5, 0.8]).all()
    assert found["robust_class"].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("alpha", [0.55, 0.8, 0.99])
def test_the_radius_of_a_mixture_ends_where_the_worst_g_wins(plane, images, alpha):
    exact = np.array([0.1, 0.3, 0.5, 0.8]) - np.arctanh(needed_margin(alpha)) / 3.0
    found = Lipschitz(robust=plane, alpha=alpha).certify(images, INDEX)["radius"]
    assert found == pytest.approx(np.maximum(exact, 0), abs=1e-3) and (found <= np.maximum(exact, 0)).all()
    mixed = ads.MixedClassifier(AlwaysOne(), plane, alpha=alpha)
    for distance, r in zip((0.1, 0.3, 0.8), found[[0, 1, 3]], strict=True):
        at = plane.at(torch.tensor([distance - r + 1e-4, distance - r - 3e-3], dtype=torch.float32))
        if r > 0:
            assert mixed(at).argmax(1).tolist() == [0, 1]


def test_the_radius_of_a_confident_prediction_is_not_too_large():
    """Where 1 - gap is 1e-16, float64 cannot resolve the gap itself."""
    steep, alpha = 40.0, 0.7
    plane = HalfSpaces(steep=steep)
    distances = torch.linspace(0.35, 0.6, 60)
    found = Lipschitz(robust=plane, alpha=alpha).certify(plane.at(distances), torch.arange(60))["radius"]
    exact = distances.numpy() - np.arctanh(needed_margin(alpha)) / steep
    assert (found <= exact + 1e-6).all() and found == pytest.approx(exact, abs=1e-3)


def test_a_scale_enlarges_the_constant(plane, images):
    """Scaled logits are more confident and steeper: the radius of h is the same, that of a mixture is larger."""
    alone = [Lipschitz(robust=plane, scale=scale).certify(images, INDEX)["radius"] for scale in (1.0, 7.0)]
    assert alone[0] == pytest.approx(alone[1], abs=1e-9)
    mixed = [Lipschitz(robust=plane, scale=scale, alpha=0.7).certify(images, INDEX)["radius"] for scale in (1.0, 7.0)]
    assert (mixed[1] > mixed[0]).all()


def test_the_papers_bound_is_weaker(plane, images):
    ours, papers = (
        Lipschitz(robust=plane, alpha=0.9, theorem=name).certify(images, INDEX) for name in ("margin", "paper")
    )
    assert (ours["radius"] >= papers["radius"]).all() and ours["radius"].sum() > papers["radius"].sum() + 0.1


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        (torch.zeros(2, 2), "from 0 to 0"),
        (torch.tensor([[0.0, 1.0], [torch.inf, 0.0]]), "to inf"),
        (torch.ones(2), r"shape \[2\]"),
        (torch.ones(2, 3), r"shape \[2, 3\]"),
    ],
)
def test_impossible_constants_are_refused(images, constants, message):
    class Unproven(HalfSpaces):
        def pairwise_lipschitz(self):
            return constants.double()

    with pytest.raises(ValueError, match=f"positive, finite constants.*{message}"):
        Lipschitz(robust=Unproven()).certify(images, INDEX)
