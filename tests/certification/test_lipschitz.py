"""Certificates from Lipschitz constants, on a plane and on a network whose constant is known by construction."""

import copy

import numpy as np
import pytest
import torch
from half_spaces import AlwaysOne, HalfSpaces

import adaptive_smoothing as ads
from adaptive_smoothing.certification.lipschitz import Lipschitz
from adaptive_smoothing.certification.local_lipschitz import LocalEstimate
from adaptive_smoothing.certification.radius import needed_margin
from adaptive_smoothing.models.architectures import build

INDEX = torch.arange(4)


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=3.0)


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.1, 0.3, -0.5, 0.8]))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=20.0).eval().requires_grad_(False)


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


# --- the network --------------------------------------------------------------------------------------


def test_every_layer_respects_its_bound(network):
    for layer in network.layers:
        assert 1 - 1e-6 <= layer.lipschitz() <= 1 + 1e-5
    for layer in (*network.layers, network.head):
        if hasattr(layer, "contracted"):
            assert torch.linalg.matrix_norm(layer.contracted().double(), 2) <= layer.lipschitz() + 1e-9


def test_no_pair_of_images_violates_the_constants(network):
    """Random pairs, and pairs along the gradient."""
    model = build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=20.0).double().eval()
    model.load_state_dict(network.state_dict())
    constants = network.pairwise_lipschitz()
    generator = torch.Generator().manual_seed(0)
    one = torch.rand(32, 3, 32, 32, generator=generator, dtype=torch.float64)
    pairs = [torch.rand(32, 3, 32, 32, generator=generator, dtype=torch.float64)]
    for i, j in ((0, 1), (3, 7)):
        at = one.clone().requires_grad_()
        logits = model(at)
        (steepest,) = torch.autograd.grad((logits[:, i] - logits[:, j]).sum(), at)
        pairs.append((one + 1e-3 * steepest / steepest.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).detach())
    for other in pairs:
        with torch.no_grad(), ads.models.contract.trusted_images():
            moved = model(other) - model(one)
        change = (moved[:, :, None] - moved[:, None]).abs()
        length = (other - one).flatten(1).norm(dim=1)[:, None, None]
        assert (change <= constants * length * (1 + 1e-9)).all()


def test_any_weights_respect_the_bound():
    model = build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=20.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((5 * torch.randn(weight.shape, generator=generator)).half())
    assert model.pairwise_lipschitz().max() <= 20 * 2 * (1 + 1e-4)


def test_cached_weights_follow_the_parameters(network):
    """The cache is not shared with a copy, and not used after training, in another precision, or for a gradient."""
    images = torch.rand(2, 3, 32, 32)

    def without_cache(net):
        with torch.inference_mode():
            return net(images.to(next(net.parameters()).dtype)).clone()

    net = copy.deepcopy(network)
    before = net(images)
    assert torch.equal(before, without_cache(net)) and torch.equal(net(images), before)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.3)
    after = net(images)
    assert not torch.equal(after, before) and torch.equal(after, without_cache(net))
    assert torch.equal(network(images), before)
    double = net.double()
    assert torch.equal(double(images.double()), without_cache(double))
    net = copy.deepcopy(network).requires_grad_(True)
    net(images).sum().backward()
    assert all(parameter.grad is not None for parameter in net.layers[2].parameters())


def test_a_bound_covers_cached_weights_after_an_untracked_change(network):
    net = copy.deepcopy(network)
    net(torch.rand(1, 3, 32, 32))
    for parameter in net.parameters():
        parameter.data.mul_(1.5)  # does not count as a new version
    contraction, residual = net.layers[1:3]
    assert residual.lipschitz() == pytest.approx(2 * 1.5**2 - 1, rel=1e-4)
    # The contraction still uses its cached weights.
    assert contraction.lipschitz() == pytest.approx(network.layers[1].lipschitz(), rel=1e-6)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"blocks": [1, 1], "size": 30}, {"hidden": 33}])
def test_impossible_networks_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        build("lipschitz_net", **options)


# --- local estimates ----------------------------------------------------------------------------------


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
