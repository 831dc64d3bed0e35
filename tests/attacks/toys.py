"""Classifiers whose optimal attacks are known, and images well inside the box to try attacks on."""

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.threat import Threat

CPU = torch.device("cpu")


class Planes(nn.Module):
    """Linear: the distance of an image to the boundary is that to the nearest of its planes."""

    def __init__(self, classes: int = 5, shape: tuple[int, int, int] = (3, 4, 4), seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        pixels = shape[0] * shape[1] * shape[2]
        weight = torch.randn(classes, pixels, generator=generator)
        # The planes go through the middle of the box.
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(-weight.sum(1) / 2)
        self.shape = shape
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T + self.bias

    def distance(self, images: Tensor, labels: Tensor, threat: Threat) -> Tensor:
        """To the boundary, in the norm of the threat, where the box does not bind."""
        with torch.no_grad():
            logits = self(images)
            lead = logits.gather(1, labels[:, None]) - logits
            slope = torch.stack([threat.dual_norm(self.weight[label] - self.weight) for label in labels])
        return (lead / slope).scatter(1, labels[:, None], torch.inf).amin(1)


def pictures(count: int = 64, shape: tuple[int, int, int] = (3, 4, 4), low: float = 0.4, high: float = 0.6) -> Tensor:
    return low + (high - low) * torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def aimed(model: nn.Module, images: Tensor, threat: Threat) -> AttackInput:
    """Images labelled with what the model says of them."""
    with torch.no_grad():
        logits = model(images)
    return AttackInput(images, logits.argmax(1), torch.arange(len(images)), logits, threat)


def run(model: nn.Module, attack, shot: AttackInput, batch_size: int = 64, **options) -> AttackOutcome:
    """In full precision, as what is tested is not the arithmetic."""
    return run_attack(Engine(model, CPU, batch_size, precise=True), "test", attack, shot, **options)


def assert_inside(outcome: AttackOutcome, shot: AttackInput) -> None:
    """The worst versions are in the ball and in the box, and those that fooled the model are not the images."""
    assert (shot.threat.distance(outcome.worst, shot.images) <= shot.eps + 1e-6).all()
    assert outcome.worst.min() >= 0 and outcome.worst.max() <= 1
