"""Attacks on training images of a mixing network, made while it learns: the paper's settings A, B, C, `turning` and
`hostile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.arithmetic import FastModel
from adaptive_smoothing.attacks.batch import Batch
from adaptive_smoothing.attacks.losses import cross_entropy_loss, targeted_dlr_loss
from adaptive_smoothing.attacks.objectives import (
    Aimed,
    LowerAlpha,
    Objective,
    cross_entropy,
    targeted_margin,
    turn_standard,
)
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.steps import State, Victim, most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Claiming
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.mixing_recipe import AttackSettings

# How often a target is the likeliest wrong class, the next one, and so on.
TARGETED = (0.5, 0.25, 0.15, 0.1)
# One in so many batches is attacked without a target in setting C: AutoAttack tries one such attack and nine with one.
UNTARGETED = 0.25
LEAST_STEPS = 3


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


@dataclass
class ClimbingPGD:
    """Settings A and B: PGD from the image itself, on a view of the mixture."""

    model: Any
    chance: Chance
    gray: bool

    def __call__(self, batch: TrainingBatch) -> Attacked:
        # A gray-box attacker has no gradient of alpha to follow down.
        lower = LowerAlpha(cross_entropy_loss, self.chance.weights(batch))
        objective: Objective = cross_entropy if self.gray else lower
        attack = PGD(self.chance.radii(batch), steps=self.chance.steps(batch), objective=objective)
        return Attacked(attack.last_iterate(self.model, batch.images, batch.labels, batch.noise))


@dataclass(frozen=True)
class TrainingAPGD(APGD):
    """APGD with a weight of its own on each image's term that lowers alpha."""

    targeted: bool = True

    def objective(self, state: State) -> Objective:
        return LowerAlpha(targeted_dlr_loss if self.targeted else cross_entropy_loss, state["weight"])


class ClimbingAPGD:
    """Setting C: the two APGD parts of AutoAttack, by chance one of them for a batch."""

    def __init__(self, model: Any, chance: Chance) -> None:
        self.model, self.chance = model, chance
        self.attacks = [
            TrainingAPGD(chance.settings.threat, steps=chance.settings.steps, targeted=targeted)
            for targeted in (False, True)
        ]
        self.batches: dict[bool, Batch] = {}

    def __call__(self, batch: TrainingBatch) -> Attacked:
        coin = torch.rand((), generator=generator(batch.noise.initial_seed(), "target"))
        targeted = coin.item() >= UNTARGETED
        running = self._load(targeted, self._state(batch))
        # The first question is about the start itself.
        running.advance(self.chance.steps(batch) + 1)
        return Attacked(running.state["worst"].clone())

    def _state(self, batch: TrainingBatch) -> State:
        count, device = len(batch.labels), batch.labels.device
        with torch.no_grad():
            logits = self.model(batch.images)
        wrong = most_likely_targets(logits, batch.labels, logits.shape[1] - 1)
        drawn = torch.randint(wrong.shape[1], (count, 1), generator=batch.noise, device=device)
        zero = torch.zeros_like(batch.labels)
        return {
            "clean": batch.images,
            "label": batch.labels,
            "eps": torch.as_tensor(self.chance.radii(batch).eps),
            "target": wrong.gather(1, drawn).squeeze(1),
            "weight": self.chance.weights(batch),
            "key": torch.randint(2**32, (count,), generator=batch.noise, device=device),
            "step": zero,
            "end": torch.full_like(zero, 2**31),
            "worst": batch.images.clone(),
            "margin": torch.full((count,), -torch.inf, device=device),
        }

    def _load(self, targeted: bool, state: State) -> Batch:
        """On CUDA the step is recorded once: weights change where they are, and the record sees it."""
        attack = self.attacks[targeted]
        state |= attack.begin(state, classes=0)
        if targeted in self.batches:
            self.batches[targeted].load(state)
        else:
            owned = {name: value.clone() for name, value in state.items()}
            self.batches[targeted] = Batch(attack, Victim(self.model), owned, full=1, compiled=False, memory=None)
        return self.batches[targeted]


@dataclass
class Targeted:
    """PGD towards a wrong class that h finds likely, and that a `hostile` g claims."""

    model: Any
    robust: Any
    chance: Chance
    objective: Objective
    hostile: Claiming | None = None

    def __call__(self, batch: TrainingBatch) -> Attacked:
        with torch.no_grad():
            logits = self.robust(batch.images)
        wrong = most_likely_targets(logits, batch.labels, len(TARGETED))
        odds = torch.tensor(TARGETED[: wrong.shape[1]], device=logits.device)
        drawn = torch.multinomial(odds, len(logits), replacement=True, generator=batch.noise)
        targets = wrong.gather(1, drawn[:, None]).squeeze(1)
        if self.hostile is not None:
            self.hostile.tell(targets)
        threat, steps = self.chance.radii(batch), self.chance.steps(batch)
        attack = PGD(
            threat,
            steps=steps,
            step_size=2.5 / steps * torch.as_tensor(threat.eps),
            random_start=True,
            objective=Aimed(self.objective, targets),
        )
        images = attack.last_iterate(self.model, batch.images, batch.labels, batch.noise)
        return Attacked(images, None if self.hostile is None else targets)


@dataclass
class ThroughRobust:
    """PGD on h alone: it fools h, and g hardly notices."""

    robust: Any
    chance: Chance

    def __call__(self, batch: TrainingBatch) -> Attacked:
        attack = PGD(self.chance.radii(batch), steps=self.chance.steps(batch))
        return Attacked(attack.last_iterate(self.robust, batch.images, batch.labels, batch.noise))


def make_attack(mixed: MixedClassifier, settings: AttackSettings, device: torch.device, *, compiled: bool) -> Attack:
    """The attack on a mixture that a recipe names."""
    chance, robust = Chance(settings), FastModel(mixed.robust, device)
    if settings.setting == "hostile":
        claiming = Claiming(_classes(mixed))
        told = FastModel(mixed.with_standard(claiming), device, compiled=compiled)
        return Targeted(told, robust, chance, targeted_margin, claiming)
    view = mixed.gray_box() if settings.setting == "A" else mixed
    model = FastModel(view, device, compiled=compiled)
    if settings.setting == "turning":
        return Targeted(model, robust, chance, turn_standard)
    if settings.setting == "C":
        return ClimbingAPGD(model, chance)
    return ClimbingPGD(model, chance, gray=settings.setting == "A")


def _classes(mixed: MixedClassifier) -> int:
    if mixed.num_classes is None:
        raise ValueError("expected classifiers that say how many classes they have, got none: wrap them with ads.wrap")
    return mixed.num_classes
