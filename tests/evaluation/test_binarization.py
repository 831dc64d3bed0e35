"""The task of the test has a solution, which only a good attack finds."""

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.binarization import Ball, Binary, Features, _binary, _widest_gap, binarization_test
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import L2, Linf

LINF = Linf(8 / 255)


def network(seed=0, features=256):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 16, 3, 1, 1), nn.SiLU(), nn.Conv2d(16, features // 16, 3, 2, 1), nn.SiLU()
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 10)).eval().requires_grad_(False)


class Quantised(nn.Module):
    """Rounds images to 16 levels, so that the gradient is zero."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        return self.model((images * 15).round() / 15)


@pytest.fixture
def images():
    """Eight images of 3 x 8 x 8 with 256 levels, well inside the box."""
    levels = torch.randint(30, 226, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    return levels / 255


def run(model, images, threat=LINF, attack=None, **options):
    return binarization_test(model, images, model(images).argmax(1), threat, attack, inner=60, **options)


@pytest.mark.parametrize(
    "threat", [LINF, L2(0.3), Linf(torch.linspace(0.01, 0.03, 8))], ids=["linf", "l2", "per image"]
)
def test_an_attack_with_gradients_succeeds_where_random_points_do_not(images, threat):
    result = run(network(), images, threat)
    assert (result.images, result.skipped) == (8, 0)
    assert result.attack_success == 1 and result.random_success <= 0.25 and result.passed


@pytest.mark.filterwarnings("ignore:the gradient was zero")
def test_an_attack_without_a_gradient_does_not_pass(images):
    result = run(Quantised(network()), images)
    assert result.images == 8 and result.attack_success <= 0.25 and not result.passed


def test_attacks_of_the_engine_and_cascades_can_be_tested(images):
    model = network()
    weak = Stage("transfer", PGD(LINF, steps=1), source=lambda model: model.no_such_part)
    cascade = Cascade("two", LINF, (weak, Stage("apgd", APGD(LINF, steps=10))))
    for attack in (APGD(LINF, steps=10), cascade):
        assert run(model, images, LINF, attack, restarts=1).passed


def test_an_attack_that_does_nothing_has_no_success_and_one_that_leaves_the_ball_is_an_error(images):
    assert run(network(), images, LINF, lambda model, x, y: x).attack_success == 0
    # Far outside the ball the readout is arbitrary: class 1 for about half of the images.
    with pytest.raises(ValueError, match=r"expected attacked images within Linf 8/255 .*, got 4 of 4 outside"):
        run(network(), images, LINF, lambda model, x, y: x.flip(3))


def test_the_planted_point_and_the_image_are_of_different_classes(images):
    model = network()
    features = Features(model, images[:1], 10)
    ball = Ball(images[0], LINF, generator(0, "test"))
    binary = _binary(features, ball, inner=50, boundary=3)
    again = Ball(images[0], LINF, generator(0, "test"))
    inner, planted = again.inside(50), again.surface(3)
    assert isinstance(binary, Binary) and torch.equal(inner[0], images[0])
    assert binary(inner).argmax(1).tolist() == [0] * 50 and binary(planted).argmax(1).tolist() == [1] * 3
    assert torch.allclose(LINF.distance(planted, images[:1].expand(3, -1, -1, -1)), torch.tensor(8 / 255))
    assert LINF.distance(inner, images[:1]).max() <= 0.95 * 8 / 255 + 1e-6


def test_only_correctly_classified_images_are_tested(images):
    model = network()
    labels = model(images).argmax(1)
    labels[:5] = (labels[:5] + 1) % 10
    assert binarization_test(model, images, labels, LINF, inner=20).images == 3
    nothing = binarization_test(model, images[:5], labels[:5], LINF)
    assert nothing.images == 0 and not nothing.passed and nothing.attack_success is None


def test_points_that_no_plane_separates_are_skipped(images):
    """With two features and 500 points the planted one is often inside their convex hull."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        narrow = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 2), nn.Tanh(), nn.Linear(2, 10)).eval()
    result = binarization_test(narrow, images, narrow(images).argmax(1), LINF, inner=500)
    assert result.skipped > 0 and result.images + result.skipped == 8


# --- parts --------------------------------------------------------------------------------------------


def test_the_widest_gap_of_known_points():
    low = np.array([[0.0, 0.0], [0.0, 1.0], [-1.0, 0.3]])
    assert np.allclose(_widest_gap(low, np.array([[2.0, 0.5]])), [2, 0])
    assert np.allclose(_widest_gap(low, np.array([[1.0, 2.0]])), [1, 1])
    assert np.allclose(_widest_gap(low, np.array([[2.0, -9.0], [2.0, 9.0]])), [2, 0])
    assert _widest_gap(low, np.array([[-0.3, 0.4]])) is None
    assert _widest_gap(low[:1], low[:1]) is None


def test_features_are_the_inputs_of_the_last_layers(images):
    g, h = network(0), network(1)
    assert torch.equal(Features(g, images[:1], 10)(images), g[:-1](images))
    mixed = MixedClassifier(g, h, 0.5)
    assert torch.equal(Features(mixed, images[:1], 10)(images), torch.cat([g[:-1](images), h[:-1](images)], 1))
    without = nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten()).eval()
    assert torch.equal(Features(without, images[:1], 10)(images), without(images))
