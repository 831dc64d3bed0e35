"""Classifiers with known optimal attacks, images that are well inside the box, and attacks with small budgets."""

from functools import partial

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import targeted_dlr, targeted_margin
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import Threat

CPU = torch.device("cpu")
# An image whose distance to the boundary is this close to the radius, relatively, may be fooled or not.
BAND = 0.01
# One attack of each kind, for tests of the engine.
ATTACKS = {
    "apgd": partial(APGD, steps=10, objective=targeted_dlr, target_classes=2, restarts=2),
    "pgd": partial(DiversifiedPGD, steps=8, objective=targeted_margin, target_classes=3, diversify=2),
    "fab": partial(FAB, steps=8, target_classes=2),
    "square": partial(Square, queries=25),
}


class Planes(nn.Module):
    """A linear classifier: the distance of an image to the boundary is the distance to the nearest plane."""

    def __init__(self, classes: int = 5, shape: tuple[int, int, int] = (3, 4, 4), seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(classes, shape[0] * shape[1] * shape[2], generator=generator)
        # The planes go through the middle of the box.
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(-weight.sum(1) / 2)
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T + self.bias

    def distance(self, images: Tensor, labels: Tensor, threat: Threat) -> Tensor:
        """Return the distance to the boundary in the norm of the threat, without the box."""
        with torch.no_grad():
            logits = self(images)
            lead = logits.gather(1, labels[:, None]) - logits
            slope = torch.stack([threat.dual_norm(self.weight[label] - self.weight) for label in labels])
        return (lead / slope).scatter(1, labels[:, None], torch.inf).amin(1)


class Constant(nn.Module):
    """Predicts one class for all images, with a gradient of zero."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.logits, self.training = 5 * torch.eye(4)[label], False

    def forward(self, images: Tensor) -> Tensor:
        return self.logits + 0 * images.flatten(1)[:, :1]


class Brightness(nn.Module):
    """An alpha that grows with the mean of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return (images.mean((1, 2, 3)) * 20 - 9.5).clamp(0.01, 0.99)


def mixed(
    alpha: float | nn.Module = 0.5, standard: nn.Module | None = None, robust: nn.Module | None = None
) -> MixedClassifier:
    return MixedClassifier(standard or Planes(seed=0), robust or Planes(seed=1), alpha)


def small_network() -> nn.Sequential:
    """Return a network for 3 x 8 x 8 images that is far from linear: attacks end differently from every start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU(), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(64, 10))
    for layer in (model[0], model[2], model[5]):
        layer.weight.data *= 5
    return model.eval().requires_grad_(False)


def make_images(
    count: int = 64, shape: tuple[int, int, int] = (3, 4, 4), low: float = 0.4, high: float = 0.6
) -> Tensor:
    return low + (high - low) * torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def make_input(model: nn.Module, images: Tensor, threat: Threat) -> AttackInput:
    """Return images labelled with the model's predictions."""
    with torch.no_grad():
        logits = model(images)
    return AttackInput(images, logits.argmax(1), torch.arange(len(images)), logits, threat)


def run(model: nn.Module, attack: StepAttack, inputs: AttackInput, batch_size: int = 64, **options) -> AttackOutcome:
    """Run an attack in full precision."""
    return run_attack(Engine(model, CPU, batch_size, precise=True), "test", attack, inputs, **options)


def assert_inside(outcome: AttackOutcome, inputs: AttackInput) -> None:
    """Assert that the worst versions are in the ball and in the box."""
    assert (inputs.threat.distance(outcome.worst, inputs.images) <= inputs.eps + 1e-6).all()
    assert outcome.worst.min() >= 0 and outcome.worst.max() <= 1


def median_threat(model: Planes, kind: type[Threat], images: Tensor) -> tuple[Threat, Tensor]:
    """Return the threat that can fool half of the images, and the distance of each to the boundary."""
    distance = model.distance(images, model(images).argmax(1), kind(0.0))
    return kind(distance.median().item()), distance


def within(distance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return which images are within eps of the boundary, and which are too close to eps to decide."""
    return distance < eps, (distance - eps).abs() < BAND * eps
