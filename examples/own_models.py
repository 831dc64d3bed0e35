"""Mix two models of your own, with any input size and output structure. Runs in seconds, with untrained networks.

python examples/own_models.py
"""

import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.models.features import FeatureTaps, suggest_taps


class MyNetwork(nn.Module):
    """A typical third-party model: takes normalised 64 x 64 images, returns a dictionary, is in train mode."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())
        self.late = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(2 * width, 5)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.late(self.early(images))
        return {"features": features, "scores": self.head(features.mean((2, 3)))}


# wrap adds normalisation and resizing, selects the logits, freezes the weights, and checks the result.
mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
g, h = (ads.wrap(MyNetwork(width), mean=mean, std=std, size=64, output="scores") for width in (16, 8))
mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.8)

x, y = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
print("logits", tuple(mixed(x).shape), "alpha", [round(alpha, 3) for alpha in mixed.mix(x).alpha.tolist()])

# Features of named layers and the logits, in one forward pass.
logits, features = FeatureTaps(g, suggest_taps(g))(x)
print("taps", {name: tuple(feature.shape) for name, feature in features.items()})

# forward returns logits only, so any attack library works on a mixed classifier.
x_adv = ads.PGD(ads.L2(0.5), steps=5)(mixed, x, y)
print(f"largest L2 perturbation {(x_adv - x).flatten(1).norm(dim=1).max():.2f}")
