"""Classifiers whose smoothed probabilities and distances to the decision boundary are known exactly."""

import math

import torch
from scipy.special import ndtr
from torch import Tensor, nn

import adaptive_smoothing as ads

SHAPE = (3, 4, 4)


class HalfSpaces(nn.Module):
    """Two classes on the two sides of a plane; the logits are +-`steep` times the distance to it.

    Under noise of sigma, the share of votes for the nearer class is Phi(distance / sigma).
    """

    num_classes = 2

    def __init__(self, steep: float = 10.0, seed: int = 0) -> None:
        super().__init__()
        normal = torch.randn(math.prod(SHAPE), generator=torch.Generator().manual_seed(seed))
        self.register_buffer("normal", normal / normal.norm())
        self.steep = steep
        self.eval()

    def distance(self, images: Tensor) -> Tensor:
        """Return signed distances to the plane, positive for class 0."""
        return (images - 0.5).flatten(1) @ self.normal

    def forward(self, images: Tensor) -> Tensor:
        score = self.steep * self.distance(images)
        return torch.stack([score, -score], 1)

    def pairwise_lipschitz(self) -> Tensor:
        return torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=torch.float64) * self.steep

    def at(self, distances: Tensor) -> Tensor:
        """Return images at these distances."""
        return 0.5 + distances[:, None, None, None] * self.normal.view(1, *SHAPE)

    def data(self, count: int, first: float = -0.6) -> ads.ImageData:
        """Return 8-bit images at distances from `first` to 0.9, labelled with the classes that it predicts."""
        images = (self.at(torch.linspace(first, 0.9, count)).clamp(0, 1) * 255).round() / 255
        return ads.from_tensors(images, (self.distance(images) < 0).long())


def vote_share(distance: float, sigma: float) -> float:
    return float(ndtr(distance / sigma))


class AlwaysOne(nn.Module):
    """The worst g for images of class 0: certain of class 1 everywhere."""

    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        return torch.tensor([[-50.0, 50.0]]).expand(len(images), 2) + 0 * images.flatten(1)[:, :1]


class ReturnsNaN(nn.Module):
    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        return torch.full((len(images), 2), torch.nan)
