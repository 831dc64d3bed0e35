"""Attacks on training images of a mixing network, made while it learns: the paper's settings A, B, C, `turning` and
`hostile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine.arithmetic import FastModel
from adaptive_smoothing.attacks.engine.job_batch import JobBatch
from adaptive_smoothing.attacks.losses import cross_entropy_loss, targeted_dlr_loss
from adaptive_smoothing.attacks.objectives import (
    LowerAlpha,
    Objective,
    cross_entropy,
    flip_standard,
    targeted_margin,
)
from adaptive_smoothing.attacks.pgd import STEP_FACTOR
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, Victim, column, most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Claiming, without_transform
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.mixing.recipe import AttackSettings

# How often a target is the likeliest wrong class, the next one, and so on.
TARGETED = (0.5, 0.25, 0.15, 0.1)
# One in so many batches is attacked without a target in setting C: AutoAttack tries one such attack and nine with one.
UNTARGETED = 0.25
LEAST_STEPS = 3


# A step towards a target, from a random start, in units of eps / steps.
TARGETED_STEP = 2.5


class Attacked(NamedTuple):
    """Attacked images, and the class that a hostile g claims of each, where it is one."""

    images: Tensor
    claims: Tensor | None = None


Attack = Callable[[TrainingBatch], Attacked]


@dataclass
class Chance:
    """What is random about the attack on a batch, drawn from the batch's own numbers."""

    settings: AttackSettings

    def radii(self, batch: TrainingBatch) -> Threat:
        """A radius per image, so that the network does not learn one radius."""
        settings = self.settings
        factor = settings.smallest + (settings.largest - settings.smallest) * self._uniform(batch)
        return settings.threat.with_eps(settings.eps * factor)

    def weights(self, batch: TrainingBatch) -> Tensor:
        """Of the term that lowers alpha, per image."""
        return self.settings.alpha_weight * self._uniform(batch)

    def steps(self, batch: TrainingBatch) -> int:
        """From a chi-square distribution: its mean is the number asked for."""
        wanted = self.settings.steps
        if not self.settings.vary_steps:
            return wanted
        chance = generator(batch.noise.initial_seed(), "steps")  # on the host, which has to know the number
        return max(LEAST_STEPS, round(torch.randn(wanted, generator=chance).square().sum().item()))

    def _uniform(self, batch: TrainingBatch) -> Tensor:
        return torch.rand(len(batch.labels), generator=batch.noise, device=batch.labels.device)


@dataclass(frozen=True)
class TrainingPGD(StepAttack):
    """PGD with steps of a length of its own for each image; what counts is where it ends."""

    threat: Threat
    climb: Callable[[State], Objective]
    steps: int
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.steps

    def objective(self, state: State) -> Objective:
        return self.climb(state)

    def query(self, state: State) -> Tensor:
        return state["iterate"]

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        threat = self.threat.with_eps(state["eps"])
        moved = images + column(state["step_size"], images) * threat.steepest(answer.gradient)
        return {"iterate": threat.project(moved, state["clean"])}


@dataclass(frozen=True)
class TrainingAPGD(APGD):
    """APGD with a weight of its own on each image's term that lowers alpha."""

    targeted: bool = True

    def objective(self, state: State) -> Objective:
        return LowerAlpha(targeted_dlr_loss if self.targeted else cross_entropy_loss, state["weight"])


class Climber:
    """An attack on batches of training images, one after the other.

    On CUDA a step is recorded once: weights change where they are, and the record sees it.
    """

    def __init__(self, attack: StepAttack, model: Any) -> None:
        self.attack, self.victim = attack, Victim(model)
        self.batches: dict[int, JobBatch] = {}

    def __call__(self, state: State, steps: int) -> State:
        rows = len(state["label"])
        if rows in self.batches:
            self.batches[rows].load(state)
        else:
            owned = {name: value.clone() for name, value in state.items()}
            self.batches[rows] = JobBatch(self.attack, self.victim, owned, full=1, compiled=False, memory=None)
        self.batches[rows].advance(steps)
        return self.batches[rows].state


class ClimbingPGD:
    """PGD from the images themselves: settings A and B, and what goes through h alone."""

    def __init__(self, model: Any, chance: Chance, objective: Callable[[State], Objective]) -> None:
        self.chance = chance
        self.climb = Climber(TrainingPGD(chance.settings.threat, objective, chance.settings.steps), model)

    def __call__(self, batch: TrainingBatch) -> Attacked:
        # The weights are drawn for an objective that has none, too: one order of random numbers for all settings.
        weights, radii, steps = self.chance.weights(batch), self.chance.radii(batch), self.chance.steps(batch)
        state = beginning(batch, radii, step=STEP_FACTOR / steps) | {"weight": weights, "iterate": batch.images}
        return Attacked(self.climb(state, steps)["iterate"].clone())


class ClimbingAPGD:
    """Setting C: the two APGD parts of AutoAttack, by chance one of them for a batch."""

    def __init__(self, model: Any, chance: Chance) -> None:
        self.model, self.chance = model, chance
        settings = chance.settings
        attacks = [TrainingAPGD(settings.threat, steps=settings.steps, targeted=targeted) for targeted in (False, True)]
        self.climbs = [Climber(attack, model) for attack in attacks]

    def __call__(self, batch: TrainingBatch) -> Attacked:
        coin = torch.rand((), generator=generator(batch.noise.initial_seed(), "target"))
        climb = self.climbs[coin.item() >= UNTARGETED]
        state = self._state(batch)
        # The first question is about the start itself.
        steps = self.chance.steps(batch) + 1
        return Attacked(climb(state | climb.attack.begin(state, classes=0), steps)["worst"].clone())

    def _state(self, batch: TrainingBatch) -> State:
        count, device = len(batch.labels), batch.labels.device
        with torch.no_grad():
            logits = self.model(batch.images)
        wrong = most_likely_targets(logits, batch.labels, logits.shape[1] - 1)
        drawn = torch.randint(wrong.shape[1], (count, 1), generator=batch.noise, device=device)
        return beginning(batch, self.chance.radii(batch)) | {
            "target": wrong.gather(1, drawn).squeeze(1),
            "weight": self.chance.weights(batch),
            "key": torch.randint(2**32, (count,), generator=batch.noise, device=device),
            "end": torch.full_like(batch.labels, 2**31),
            "worst": batch.images.clone(),
            "margin": torch.full((count,), -torch.inf, device=device),
        }


class Targeted:
    """PGD towards a wrong class that h finds likely, and that a `hostile` g claims."""

    def __init__(
        self, model: Any, robust: Any, chance: Chance, objective: Objective, hostile: Claiming | None = None
    ) -> None:
        self.robust, self.chance, self.hostile = robust, chance, hostile
        settings = chance.settings
        self.climb = Climber(TrainingPGD(settings.threat, lambda state: objective, settings.steps), model)

    def __call__(self, batch: TrainingBatch) -> Attacked:
        threat, steps = self.chance.radii(batch), self.chance.steps(batch)
        targets = self._targets(batch)
        if self.hostile is not None:
            self.hostile.tell(targets)
        start = threat.project(batch.images + threat.random_delta(batch.images, batch.noise), batch.images)
        state = beginning(batch, threat, step=TARGETED_STEP / steps) | {"target": targets, "iterate": start}
        images = self.climb(state, steps)["iterate"].clone()
        return Attacked(images, None if self.hostile is None else targets)

    def _targets(self, batch: TrainingBatch) -> Tensor:
        with torch.no_grad():
            wrong = most_likely_targets(self.robust(batch.images), batch.labels, len(TARGETED))
        odds = torch.tensor(TARGETED[: wrong.shape[1]], device=wrong.device)
        drawn = torch.multinomial(odds, len(wrong), replacement=True, generator=batch.noise)
        return wrong.gather(1, drawn[:, None]).squeeze(1)


def beginning(batch: TrainingBatch, threat: Threat, step: float = 0.0) -> State:
    """What every attack is told: images, labels, radii, and how long a `step` is, in units of the radius."""
    eps = torch.as_tensor(threat.eps)
    return {
        "clean": batch.images,
        "label": batch.labels,
        "target": batch.labels,
        "eps": eps,
        "step_size": step * eps,
        "step": torch.zeros_like(batch.labels),
    }


def make_attack(mixed: MixedClassifier, settings: AttackSettings, device: torch.device, *, compiled: bool) -> Attack:
    """The attack on a mixture that a recipe names."""
    chance, robust = Chance(settings), FastModel(without_transform(mixed.robust), device)
    hostile = Claiming(_classes(mixed)) if settings.setting == "hostile" else None
    view = mixed.with_standard(hostile) if hostile else mixed.gray_box() if settings.setting == "A" else mixed
    model = FastModel(view, device, compiled=compiled)
    if hostile:
        return Targeted(model, robust, chance, targeted_margin, hostile)
    if settings.setting == "turning":
        return Targeted(model, robust, chance, flip_standard)
    if settings.setting == "C":
        return ClimbingAPGD(model, chance)
    # A gray-box attacker has no gradient of alpha to follow down.
    return ClimbingPGD(model, chance, climb_only if settings.setting == "A" else lower_alpha)


def attack_through_robust(mixed: MixedClassifier, settings: AttackSettings, device: torch.device) -> Attack:
    """PGD on h alone: it fools h, and g hardly notices."""
    return ClimbingPGD(FastModel(without_transform(mixed.robust), device), Chance(settings), climb_only)


def climb_only(state: State) -> Objective:
    return cross_entropy


def lower_alpha(state: State) -> Objective:
    return LowerAlpha(cross_entropy_loss, state["weight"])


def _classes(mixed: MixedClassifier) -> int:
    if mixed.num_classes is None:
        raise ValueError("expected classifiers that say how many classes they have, got none: wrap them with ads.wrap")
    return mixed.num_classes
