"""The 1-Lipschitz network: its constants hold for any weights, in any precision, with or without cached weights."""

import copy

import pytest
import torch

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.contract import trusted_images


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=20.0).eval().requires_grad_(False)


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
        with torch.no_grad(), trusted_images():
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
