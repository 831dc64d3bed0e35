"""Two linear classifiers and images on which neither of them is always correct."""

import pytest
import torch

from adaptive_smoothing.data.conversion import from_tensors


@pytest.fixture
def robust(linear):
    return type(linear)(seed=1).eval()


@pytest.fixture
def pixels():
    return torch.randint(0, 256, (300, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def labelled_by_g(linear, pixels):
    return from_tensors(pixels, linear(pixels / 255).argmax(1))


@pytest.fixture
def data(linear, robust, pixels):
    """Half of the images have the label of g, a quarter that of h, and a quarter an arbitrary one."""
    labels = linear(pixels / 255).argmax(1)
    labels[::4] = robust(pixels[::4] / 255).argmax(1)
    labels[1::4] = torch.arange(75) % 4
    return from_tensors(pixels, labels)
