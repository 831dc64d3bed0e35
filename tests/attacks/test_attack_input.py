import pytest
import torch
from toys import Planes, make_images

from adaptive_smoothing.attacks.attack_input import confirm
from adaptive_smoothing.threat import L2, Linf


def test_of_equal_logits_the_first_class_is_the_prediction():
    model, images = Planes(), torch.full((2, 3, 4, 4), 0.5)
    model.weight.data.zero_()
    model.bias.data.zero_()
    margin, _ = confirm(model, images, images, torch.tensor([0, 1]), Linf(0.1))
    assert (margin > 0).tolist() == [False, True]


@pytest.mark.parametrize("eps", [0.5, 2.0, 10.0])
def test_the_surface_of_the_ball_counts_as_inside_for_large_images(eps):
    """The rounding error of the norm of 150,000 pixels is larger than that of one pixel."""
    images, threat = make_images(4, (3, 224, 224)), L2(eps)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    on_surface = threat.project(threat.project(images + noise, images), images)
    model, labels = Planes(2, (3, 224, 224)), torch.zeros(4).long()
    assert confirm(model, on_surface, images, labels, threat)[0].isfinite().all()
    beyond = images + 1.0001 * (on_surface - images)
    assert (confirm(model, beyond, images, labels, threat)[0] == -torch.inf).all()
