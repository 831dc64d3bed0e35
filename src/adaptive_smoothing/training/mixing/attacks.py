"""Attacks on the training images of a mixing network: the paper's settings A, B and C, and `flip-standard`.

The paper randomises the radius, the number of steps and the weight of the term that lowers alpha (sec. ada_exp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine.arithmetic import FastModel
from adaptive_smoothing.attacks.engine.job_batch import JobBatch, Victim
from adaptive_smoothing.attacks.objectives import (
    LowerAlpha,
    Objective,
    cross_entropy,
    cross_entropy_loss,
    flip_standard,
    targeted_dlr_loss,
)
from adaptive_smoothing.attacks.pgd import STEP_FACTOR, pgd_step
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import without_transform
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.mixing.recipe import AttackSettings

# Probabilities of the most likely incorrect class, the next one and so on to be the target.
TARGET_PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
# Share of batches that setting C attacks without a target: AutoAttack has one such attack and nine with a target.
UNTARGETED = 0.25
LEAST_STEPS = 3
# Step size of the targeted PGD from a random start, in units of eps / steps.
TARGETED_STEP = 2.5

Network = Callable[[Tensor], Tensor]
Attack = Callable[[TrainingBatch], Tensor]  # returns the attacked images
MakeObjective = Callable[[State], Objective]


@dataclass(frozen=True)
class RandomSettings:
    """The random numbers of the attack on a batch, drawn from the generator of the batch."""

    settings: AttackSettings

    def radii(self, batch: TrainingBatch) -> Threat:
        """Return the threat with a random radius per image, so that the network does not learn one radius."""
        settings = self.settings
        spread = settings.eps_factor_max - settings.eps_factor_min
        factor = settings.eps_factor_min + spread * self._uniform(batch)
        return settings.threat.with_eps(settings.eps * factor)

    def alpha_weights(self, batch: TrainingBatch) -> Tensor:
        """Return the weight per image of the term that lowers alpha."""
        return self.settings.alpha_weight * self._uniform(batch)

    def steps(self, batch: TrainingBatch) -> int:
        """Return a number of steps from a chi-square distribution, whose mean is `settings.steps`."""
        mean = self.settings.steps
        if not self.settings.vary_steps:
            return mean
        noise = generator(batch.noise.initial_seed(), "steps")  # on the CPU, where the number is needed
        return max(LEAST_STEPS, round(torch.randn(mean, generator=noise).square().sum().item()))

    def _uniform(self, batch: TrainingBatch) -> Tensor:
        return torch.rand(len(batch.labels), generator=batch.noise, device=batch.labels.device)


@dataclass(frozen=True)
class TrainingPGD(StepAttack):
    """PGD with one step size per image; its result is the last iterate."""

    threat: Threat
    make_objective: MakeObjective
    steps: int
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.steps

    def current_objective(self, state: State) -> Objective:
        return self.make_objective(state)

    def query(self, state: State) -> Tensor:
        return state["iterate"]

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        threat = self.threat.with_eps(state["eps"])
        return {"iterate": pgd_step(threat, images, answer.gradient, state["step_size"], state["clean"])}


@dataclass(frozen=True)
class TrainingAPGD(APGD):
    """APGD with one weight per image of the term that lowers alpha."""

    targeted: bool = True

    def current_objective(self, state: State) -> Objective:
        return LowerAlpha(targeted_dlr_loss if self.targeted else cross_entropy_loss, state["weight"])


class BatchRunner:
    """Runs the steps of an attack on one batch of training images after the other.

    On CUDA a step is recorded once. The weights change in place, so the recording uses the current ones.
    """

    def __init__(self, attack: StepAttack, model: Network) -> None:
        self.attack, self.victim = attack, Victim(model)
        self.batches: dict[int, JobBatch] = {}

    def __call__(self, state: State, steps: int) -> State:
        rows = len(state["label"])
        if rows in self.batches:
            self.batches[rows].load(state)
        else:
            owned = {name: value.clone() for name, value in state.items()}
            self.batches[rows] = JobBatch(self.attack, self.victim, owned)
        self.batches[rows].advance(steps)
        return self.batches[rows].state


class UntargetedPGD:
    """PGD from the clean images: settings A and B, and the attack on h alone."""

    def __init__(self, model: Network, random: RandomSettings, make_objective: MakeObjective) -> None:
        self.random = random
        self.run = BatchRunner(TrainingPGD(random.settings.threat, make_objective, random.settings.steps), model)

    def __call__(self, batch: TrainingBatch) -> Tensor:
        # Weights are drawn for every objective: all settings use the random numbers in the same order.
        weights, radii, steps = self.random.alpha_weights(batch), self.random.radii(batch), self.random.steps(batch)
        state = initial_state(batch, radii, step=STEP_FACTOR / steps) | {"weight": weights, "iterate": batch.images}
        return self.run(state, steps)["iterate"].clone()


class TargetedPGD:
    """PGD from a random start towards a random class that h finds likely."""

    def __init__(self, model: Network, robust: Network, random: RandomSettings, objective: Objective) -> None:
        self.robust, self.random = robust, random
        settings = random.settings
        self.run = BatchRunner(TrainingPGD(settings.threat, lambda state: objective, settings.steps), model)

    def __call__(self, batch: TrainingBatch) -> Tensor:
        threat, steps = self.random.radii(batch), self.random.steps(batch)
        targets = self._targets(batch)
        start = threat.project(batch.images + threat.random_delta(batch.images, batch.noise), batch.images)
        state = initial_state(batch, threat, step=TARGETED_STEP / steps) | {"target": targets, "iterate": start}
        return self.run(state, steps)["iterate"].clone()

    def _targets(self, batch: TrainingBatch) -> Tensor:
        with torch.no_grad():
            classes = most_likely_targets(self.robust(batch.images), batch.labels, len(TARGET_PROBABILITIES))
        probabilities = torch.tensor(TARGET_PROBABILITIES[: classes.shape[1]], device=classes.device)
        drawn = torch.multinomial(probabilities, len(classes), replacement=True, generator=batch.noise)
        return classes.gather(1, drawn[:, None]).squeeze(1)


class RandomAPGD:
    """Setting C: one of the two APGD attacks of AutoAttack, chosen at random for each batch."""

    def __init__(self, model: Network, random: RandomSettings) -> None:
        self.model, self.random = model, random
        settings = random.settings
        attacks = [TrainingAPGD(settings.threat, steps=settings.steps, targeted=targeted) for targeted in (False, True)]
        self.runners = [BatchRunner(attack, model) for attack in attacks]

    def __call__(self, batch: TrainingBatch) -> Tensor:
        coin = torch.rand((), generator=generator(batch.noise.initial_seed(), "target"))
        run = self.runners[coin.item() >= UNTARGETED]
        state = self._state(batch)
        steps = self.random.steps(batch) + 1  # the first one evaluates the start
        return run(state | run.attack.begin(state, classes=0), steps)["worst"].clone()

    def _state(self, batch: TrainingBatch) -> State:
        count, device = len(batch.labels), batch.labels.device
        with torch.no_grad():
            logits = self.model(batch.images)
        classes = most_likely_targets(logits, batch.labels, logits.shape[1] - 1)
        drawn = torch.randint(classes.shape[1], (count, 1), generator=batch.noise, device=device)
        return initial_state(batch, self.random.radii(batch)) | {
            "target": classes.gather(1, drawn).squeeze(1),
            "weight": self.random.alpha_weights(batch),
            "key": torch.randint(2**32, (count,), generator=batch.noise, device=device),
            "end": torch.full_like(batch.labels, 2**31),
            "worst": batch.images.clone(),
            "margin": torch.full((count,), -torch.inf, device=device),
        }


def initial_state(batch: TrainingBatch, threat: Threat, step: float = 0.0) -> State:
    """Return the state that every attack starts from; `step` is the step size in units of the radius."""
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
    """Return the attack on a mixture that a recipe names."""
    random, gray_box = RandomSettings(settings), settings.setting == "A"
    model = FastModel(mixed.gray_box() if gray_box else mixed, device, compiled=compiled)
    if settings.setting == "flip-standard":
        return TargetedPGD(model, FastModel(without_transform(mixed.robust), device), random, flip_standard)
    if settings.setting == "C":
        return RandomAPGD(model, random)
    # A gray-box attacker has no gradient of alpha.
    return UntargetedPGD(model, random, fool if gray_box else fool_and_lower_alpha)


def attack_through_robust(mixed: MixedClassifier, settings: AttackSettings, device: torch.device) -> Attack:
    """Return PGD on h alone, which hardly changes g."""
    return UntargetedPGD(FastModel(without_transform(mixed.robust), device), RandomSettings(settings), fool)


def fool(state: State) -> Objective:
    """Return the cross-entropy of the model."""
    return cross_entropy


def fool_and_lower_alpha(state: State) -> Objective:
    """Return the cross-entropy combined with the term that lowers alpha, by the weight of each image."""
    return LowerAlpha(cross_entropy_loss, state["weight"])
