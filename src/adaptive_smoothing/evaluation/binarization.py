"""The binarization test of an attack (Zimmermann, Brendel, Tramer and Carlini 2022).

An attack that fails on a model may have met robustness, or may be too weak for this kind of model. To tell them apart
it is set a task of the same kind that has a solution: the model's features stay as they are, its last layer is replaced
for one image at a time by a linear readout with two classes. Random points in the ball around the image are of the
class of the image, a chosen point on the surface is of the other one. So an adversarial example exists, and an attack
that is worth its name finds one for nearly every image. Random points must not, or the task was too easy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, PlainAttack, Stage, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.objectives import margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.step_attack import StepAttack
from adaptive_smoothing.models.contract import check_eval, check_images, check_labels
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat

# Inner points keep away from the surface, where the point of the other class is.
INNER_RADIUS = 0.95
# The threshold lies this far on the way from the inner points to the chosen one: an attack has to come close to it.
THRESHOLD = 0.9
PASSED = 0.95
# As many random points an image as the default attack makes steps.
STEPS, RESTARTS = 50, 4
# Points that go through the model at once.
CHUNK = 64


@dataclass(frozen=True)
class Binarization:
    """How often the attack, and as many random points, found the adversarial example that was put there.

    `images` were tested; for `skipped` ones no readout told the chosen point from the others.
    """

    images: int
    attack_success: float | None
    random_success: float | None
    skipped: int

    @property
    def passed(self) -> bool:
        """Not where nothing was tested: that shows nothing."""
        return self.attack_success is not None and self.attack_success >= PASSED


def binarization_test(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    threat: Threat,
    attack: PlainAttack | StepAttack | Cascade | None = None,
    *,
    inner: int = 200,
    boundary: int = 1,
    restarts: int = RESTARTS,
    seed: int = 0,
) -> Binarization:
    """Whether `attack`, by default PGD on the margin, finds adversarial examples that are known to exist.

    Each image that is classified right is handed to the attack `restarts` times at once, with a readout of its own.
    """
    check_eval(model)
    check_images(images)
    check_labels(labels, images, getattr(model, "num_classes", None))
    attack = attack or PGD(threat, STEPS, random_start=True, objective=margin, stop_when_fooled=True, seed=seed)
    logits = fp32_logits(model, images)
    features = Features(model, images[:1], logits.shape[1])
    found: list[tuple[bool, bool]] = []
    right = (logits.argmax(1) == labels).nonzero().squeeze(1)
    for number in right.tolist():
        which = torch.full((restarts,), number, device=images.device)
        eps = torch.as_tensor(threat.eps).expand(len(images))[number].item()
        ball = Ball(images[number], threat.with_eps(eps), generator(seed, "binarization", number))
        if (binary := _binary(features, ball, inner, boundary)) is not None:
            fell = _fooled(binary, attack, images[which], threat.take(which), which)
            found.append((fell, bool((_in_chunks(binary, ball.surface(STEPS * RESTARTS))[:, 1] > 0).any())))
    by_attack, by_chance = (float(share) for share in np.mean(found, axis=0)) if found else (None, None)
    return Binarization(len(found), by_attack, by_chance, skipped=len(right) - len(found))


@dataclass(frozen=True)
class Ball:
    """Random points around one image."""

    image: Tensor
    threat: Threat
    noise: torch.Generator

    def inside(self, count: int) -> Tensor:
        """The image itself, points anywhere well inside and, as many, on the surface of the smaller ball.

        Without the latter a readout could tell the chosen point by its distance alone, as any point of the surface.
        """
        smaller = replace(self, threat=self.threat.with_eps(INNER_RADIUS * self.threat.eps))
        delta = smaller.threat.random_delta(self.image.expand(count // 2, -1, -1, -1).cpu(), self.noise)
        anywhere = (self.image + delta.to(self.image)).clamp(0, 1)
        return torch.cat([self.image[None], anywhere, smaller.surface(count - count // 2 - 1)])

    def surface(self, count: int) -> Tensor:
        """Points as far away as can be: corners for Linf. Drawn on the CPU, the same for every device."""
        normal = torch.randn(count, *self.image.shape, generator=self.noise)
        return (self.image + (self.threat.steepest(normal) * self.threat.eps).to(self.image)).clamp(0, 1)


class Features(nn.Module):
    """What the last layer is given: the input of each linear map to the classes, side by side; a mixture has two.

    A model without such a layer, or one that calls it more than once, is read at its logits.
    """

    def __init__(self, model: nn.Module, image: Tensor, classes: int) -> None:
        super().__init__()
        self.model = model
        self.training = False
        self.heads = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == classes]
        with self._recording() as seen, torch.no_grad():
            model(image)
        self.heads = [head for head in self.heads if [tuple(part.shape[:-1]) for part in seen[head]] == [(1,)]]

    def forward(self, images: Tensor) -> Tensor:
        with self._recording() as seen:
            logits = self.model(images)
        return torch.cat([seen[head][0] for head in self.heads], 1) if self.heads else logits

    @contextmanager
    def _recording(self) -> Iterator[dict[nn.Module, list[Tensor]]]:
        seen: dict[nn.Module, list[Tensor]] = {head: [] for head in self.heads}

        def record(head: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen[head].append(inputs[0])

        handles = [head.register_forward_pre_hook(record) for head in self.heads]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


class Binary(nn.Module):
    """Class 0 on one side of a plane in feature space, where the image is, class 1 on the other."""

    num_classes = 2
    point: Tensor
    normal: Tensor

    def __init__(self, features: Features, point: Tensor, normal: Tensor) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("point", point)
        self.register_buffer("normal", normal)
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        score = self.score(self.features(images))
        return torch.stack([-score, score], 1)

    def score(self, features: Tensor) -> Tensor:
        """Distance from the plane: a point of it in place of a bias, as rounding would blur features so close to it."""
        return (features.float() - self.point) @ self.normal


def _binary(features: Features, ball: Ball, inner: int, boundary: int) -> Binary | None:
    """The model with a readout that tells the points apart, where there is one."""
    found = [_in_chunks(features, points) for points in (ball.inside(inner), ball.surface(boundary))]
    low, high = (part.cpu().double().numpy() for part in found)
    normal = _widest_gap(low, high)
    if normal is None:
        return None
    start, end = (low @ normal).max(), (high @ normal).min()
    point = low[0] + (start + THRESHOLD * (end - start) - low[0] @ normal) * normal / (normal @ normal)
    # The logits of the image and of the chosen point are 1 apart, as large as those of a classifier.
    plane = [torch.from_numpy(part).to(ball.image) for part in (point, normal / (end - low[0] @ normal))]
    binary = Binary(features, *plane)
    below, above = (binary.score(part) for part in found)
    return binary if (below < 0).all() and (above > 0).all() else None


def _widest_gap(low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """The normal of the plane that separates two sets of points by the widest gap, from low to high; None: no plane.

    It points to the origin from the nearest point of the hull of all differences. Non-negative least squares finds
    that: weights for which the weighted sum of differences is small and that of ones is near 1.
    """
    differences = (low[:, None] - high[None]).reshape(-1, low.shape[1])
    scale = np.abs(differences).max()
    if scale == 0:
        return None
    columns = np.vstack([differences.T / scale, np.ones(len(differences))])
    try:
        weights, _ = nnls(columns, np.append(np.zeros(low.shape[1]), 1.0), maxiter=10 * columns.shape[1])
    except RuntimeError:  # it did not converge
        return None
    normal = -(weights @ differences) / weights.sum()
    return normal if (low @ normal).max() < (high @ normal).min() else None


def _fooled(
    binary: Binary, attack: PlainAttack | StepAttack | Cascade, images: Tensor, threat: Threat, which: Tensor
) -> bool:
    """Whether one of the copies of an image fell. Stages that are made on another model have no meaning here."""
    # An attack may hold something for each image of the data, such as a radius.
    attack = attack.take(which) if isinstance(attack, PGD) else attack
    stages = attack.for_model(binary).stages if isinstance(attack, Cascade) else (Stage("attack", attack),)
    labels, index = torch.zeros_like(which), torch.arange(len(which), device=which.device)
    shot = AttackInput(images, labels, index, fp32_logits(binary, images), threat)
    engine, standing = Engine(binary, images.device), CascadeState.before(shot)
    for number, stage in enumerate(stage for stage in stages if stage.source is None):
        run_stage(engine, number, stage, shot, standing)
        if (standing.fooled_by >= 0).any():
            return True
    return False


def _in_chunks(function: nn.Module, points: Tensor) -> Tensor:
    return torch.cat([fp32_logits(function, part) for part in points.split(CHUNK)])
