"""Small smooth networks in double precision, whose gradients can be taken one class at a time."""

import torch
from torch import Tensor, nn

CLASSES = 4


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.Flatten(), nn.Linear(12, CLASSES)]
    return nn.Sequential(*layers).double().eval()


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
