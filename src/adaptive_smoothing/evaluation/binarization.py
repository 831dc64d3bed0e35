"""The binarization test of an attack (Zimmermann, Brendel, Tramer and Carlini 2022).

An attack may fail because the model is robust or because the attack is weak. The test distinguishes the two cases
with a task that has a solution. For each image it replaces the last layer of the model by a linear readout with two
classes. Random points in the ball around the image belong to the first class, a planted point on its surface to the
second. So an adversarial example exists, and a good attack nearly always finds one. If random points find one as well,
the task was too easy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
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

# Radius of the ball of inner points, as a share of eps; the planted point is on the surface of the whole ball.
INNER_RADIUS = 0.95
# Position of the decision boundary between the inner points (0) and the planted point (1).
THRESHOLD = 0.9
# Share of images on which a good attack succeeds.
PASSED = 0.95
# Steps of the default attack. STEPS * restarts random points are tried as well.
STEPS = 50
PLANTED = 1  # points on the surface that belong to the second class
CHUNK = 64  # points per batch
AnyAttack = PlainAttack | StepAttack | Cascade


@dataclass(frozen=True)
class Binarization:
    """How often the attack, and as many random points, found an adversarial example on the images that were tested."""

    images: int
    attack_success: float | None
    random_success: float | None
    skipped: int  # images for which no readout separates the planted point from the others

    @property
    def passed(self) -> bool:
        """Whether the attack succeeded on nearly all images; False if none could be tested."""
        return self.attack_success is not None and self.attack_success >= PASSED


def binarization_test(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    threat: Threat,
    attack: AnyAttack | None = None,
    *,
    inner: int = 200,
    restarts: int = 4,
) -> Binarization:
    """Test whether an attack finds adversarial examples that are known to exist.

    Args:
        attack: by default PGD on the margin.
        inner: number of points that belong to the class of the image: the image itself and random points around it.
        restarts: number of copies of an image that are attacked.
    """
    check_eval(model)
    check_images(images)
    check_labels(labels, images, getattr(model, "num_classes", None))
    attack = attack or PGD(threat, STEPS, random_start=True, objective=margin, stop_when_fooled=True)
    logits = fp32_logits(model, images)
    features = Features(model, images[:1], logits.shape[1])
    found: list[tuple[bool, bool]] = []
    correct = (logits.argmax(1) == labels).nonzero().squeeze(1)
    for number in correct.tolist():
        which = torch.full((restarts,), number, device=images.device)
        eps = torch.as_tensor(threat.eps).expand(len(images))[number].item()
        ball = Ball(images[number], threat.with_eps(eps), generator(0, "binarization", number))
        if (binary := _binary(features, ball, inner, PLANTED)) is not None:
            by_attack = _fooled(binary, attack, images[which], threat.take(which), which)
            by_chance = bool((_in_chunks(binary, ball.surface(STEPS * restarts))[:, 1] > 0).any())
            found.append((by_attack, by_chance))
    attack_success, random_success = (float(share) for share in np.mean(found, axis=0)) if found else (None, None)
    return Binarization(len(found), attack_success, random_success, skipped=len(correct) - len(found))


@dataclass(frozen=True)
class Ball:
    """Random points around one image."""

    image: Tensor
    threat: Threat
    noise: torch.Generator

    def inside(self, count: int) -> Tensor:
        """Return the image and random points, half of them in a smaller ball, the others on its surface."""
        # Without points on a surface the readout could recognise the planted point by its distance alone.
        smaller = replace(self, threat=self.threat.with_eps(INNER_RADIUS * self.threat.eps))
        delta = smaller.threat.random_delta(self.image.expand(count // 2, -1, -1, -1).cpu(), self.noise)
        anywhere = (self.image + delta.to(self.image)).clamp(0, 1)
        return torch.cat([self.image[None], anywhere, smaller.surface(count - count // 2 - 1)])

    def surface(self, count: int) -> Tensor:
        """Return random points on the surface (for Linf: corners); they are the same on every device."""
        normal = torch.randn(count, *self.image.shape, generator=self.noise)
        return (self.image + (self.threat.steepest(normal) * self.threat.eps).to(self.image)).clamp(0, 1)


class Features(nn.Module):
    """The inputs of all linear layers with one output per class, concatenated; a mixture has two such layers.

    If the model has no such layer, or calls it more than once, the features are the logits.
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

        def record(head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[head].append(inputs[0])

        handles = [head.register_forward_pre_hook(record) for head in self.heads]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


class Binary(nn.Module):
    """A classifier with a plane in feature space: class 0 on the side of the image, class 1 on the other."""

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
        """Return the signed distance from the plane, computed from one of its points: a bias would round more."""
        return (features.float() - self.point) @ self.normal


def _binary(features: Features, ball: Ball, inner: int, boundary: int) -> Binary | None:
    """Return a classifier that separates the inner points from the planted ones, or None if no plane does."""
    found = [_in_chunks(features, points) for points in (ball.inside(inner), ball.surface(boundary))]
    low, high = (part.cpu().double().numpy() for part in found)
    if (normal := _widest_gap(low, high)) is None:
        return None
    start, end = (low @ normal).max(), (high @ normal).min()
    point = low[0] + (start + THRESHOLD * (end - start) - low[0] @ normal) * normal / (normal @ normal)
    # The scores of the image and of the planted point differ by 1, which is of the size of a classifier's logits.
    plane = [torch.from_numpy(part).to(ball.image) for part in (point, normal / (end - low[0] @ normal))]
    binary = Binary(features, *plane)
    below, above = (binary.score(part) for part in found)
    return binary if (below < 0).all() and (above > 0).all() else None


def _widest_gap(low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """Return the normal, from low to high, of the plane that separates two sets of points by the widest gap, or None.

    The normal is minus the point of the convex hull of all differences that is nearest to the origin. Non-negative
    least squares finds it: weights whose sum is near 1 and whose weighted sum of differences is small.
    """
    from scipy.optimize import nnls  # takes a second to import

    differences = (low[:, None] - high[None]).reshape(-1, low.shape[1])
    if (scale := np.abs(differences).max()) == 0:
        return None
    columns = np.vstack([differences.T / scale, np.ones(len(differences))])
    try:
        weights, _ = nnls(columns, np.append(np.zeros(low.shape[1]), 1.0), maxiter=10 * columns.shape[1])
    except RuntimeError:  # no convergence
        return None
    normal = -(weights @ differences) / weights.sum()
    return normal if (low @ normal).max() < (high @ normal).min() else None


def _fooled(binary: Binary, attack: AnyAttack, images: Tensor, threat: Threat, which: Tensor) -> bool:
    """Return whether the attack fools one of the copies of an image; stages on a view of the model are skipped."""
    # PGD may have a radius for each image of the data.
    attack = attack.take(which) if isinstance(attack, PGD) else attack
    stages = attack.for_model(binary).stages if isinstance(attack, Cascade) else (Stage("attack", attack),)
    labels, index = torch.zeros_like(which), torch.arange(len(which), device=which.device)
    inputs = AttackInput(images, labels, index, fp32_logits(binary, images), threat)
    engine, state = Engine(binary, images.device), CascadeState.before(inputs)
    for number, stage in enumerate(stage for stage in stages if stage.source is None):
        if (state.fooled_by < 0).all():
            run_stage(engine, number, stage, inputs, state)
    return bool((state.fooled_by >= 0).any())


def _in_chunks(function: nn.Module, points: Tensor) -> Tensor:
    """Return the outputs for many points, computed in small batches."""
    return torch.cat([fp32_logits(function, part) for part in points.split(CHUNK)])
