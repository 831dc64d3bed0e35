"""Attacks on the training images of a mixing network: the paper's settings A, B and C, and `flip-standard`.

The paper randomises the radius, the number of steps and the weight of the term that lowers alpha (sec. ada_exp).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks import objectives
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine.arithmetic import FastModel
from adaptive_smoothing.attacks.engine.job_batch import JobBatch, Victim
from adaptive_smoothing.attacks.objectives import Loss, LowerAlpha, Objective
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


@dataclass(frozen=True)
class TrainingPGD(StepAttack):
    """PGD with one step size per image; its result is the last iterate.

    Without an objective, it is the cross-entropy and the term that lowers alpha, by the weight of each image.
    """

    threat: Threat
    steps: int
    objective: Objective | None = None
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.steps

    def current_objective(self, state: State) -> Objective:
        return self.objective or LowerAlpha(objectives.cross_entropy_loss, state["weight"])

    def query(self, state: State) -> Tensor:
        return state["iterate"]

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        threat = self.threat.with_eps(state["eps"])
        return {"iterate": pgd_step(threat, images, answer.gradient, state["step_size"], state["clean"])}


@dataclass(frozen=True)
class TrainingAPGD(APGD):
    """APGD with one weight per image of the term that lowers alpha."""

    loss: Loss = objectives.cross_entropy_loss

    def current_objective(self, state: State) -> Objective:
        return LowerAlpha(self.loss, state["weight"])


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


class TrainingAttack(ABC):
    """Attacks on `model` whose random numbers are drawn from the generator of the batch.

    `ranking` is the model that decides which classes are likely targets, by default `model`.
    """

    def __init__(
        self, model: Network, settings: AttackSettings, *attacks: StepAttack, ranking: Network | None = None
    ) -> None:
        self.settings, self.ranking = settings, ranking or model
        self.runners = [BatchRunner(attack, model) for attack in attacks]

    @abstractmethod
    def __call__(self, batch: TrainingBatch) -> Tensor:
        """Return the attacked images."""

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
        if not self.settings.vary_steps:
            return self.settings.steps
        noise = generator(batch.noise.initial_seed(), "steps")  # on the CPU, where the number is needed
        return max(LEAST_STEPS, round(torch.randn(self.settings.steps, generator=noise).square().sum().item()))

    @torch.no_grad()
    def likely_classes(self, batch: TrainingBatch, count: int) -> Tensor:
        """Return [images, at most count]: the incorrect classes, the most likely first."""
        return most_likely_targets(self.ranking(batch.images), batch.labels, count)

    def _uniform(self, batch: TrainingBatch) -> Tensor:
        return torch.rand(len(batch.labels), generator=batch.noise, device=batch.labels.device)


class UntargetedPGD(TrainingAttack):
    """PGD from the clean images: settings A and B, and the attack on h alone."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        # Weights are drawn for every objective: all settings use the random numbers in the same order.
        weights, radii, steps = self.alpha_weights(batch), self.radii(batch), self.steps(batch)
        state = initial_state(batch, radii, step=STEP_FACTOR / steps) | {"weight": weights, "iterate": batch.images}
        return self.runners[0](state, steps)["iterate"].clone()


class TargetedPGD(TrainingAttack):
    """PGD from a random start towards a random class that h finds likely."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        threat, steps = self.radii(batch), self.steps(batch)
        classes = self.likely_classes(batch, len(TARGET_PROBABILITIES))
        probabilities = torch.tensor(TARGET_PROBABILITIES[: classes.shape[1]], device=classes.device)
        drawn = torch.multinomial(probabilities, len(classes), replacement=True, generator=batch.noise)
        targets = classes.gather(1, drawn[:, None]).squeeze(1)
        start = threat.project(batch.images + threat.random_delta(batch.images, batch.noise), batch.images)
        state = initial_state(batch, threat, step=TARGETED_STEP / steps) | {"target": targets, "iterate": start}
        return self.runners[0](state, steps)["iterate"].clone()


class RandomAPGD(TrainingAttack):
    """Setting C: one of the two APGD attacks of AutoAttack, chosen at random for each batch."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        coin = torch.rand((), generator=generator(batch.noise.initial_seed(), "target"))
        run = self.runners[coin.item() >= UNTARGETED]
        count, device = len(batch.labels), batch.labels.device
        classes = self.likely_classes(batch, sys.maxsize)
        drawn = torch.randint(classes.shape[1], (count, 1), generator=batch.noise, device=device)
        state = initial_state(batch, self.radii(batch)) | {
            "target": classes.gather(1, drawn).squeeze(1),
            "weight": self.alpha_weights(batch),
            "key": torch.randint(2**32, (count,), generator=batch.noise, device=device),
            "end": torch.full_like(batch.labels, 2**31),
            "worst": batch.images.clone(),
            "margin": torch.full((count,), -torch.inf, device=device),
        }
        steps = self.steps(batch) + 1  # the first one evaluates the start
        return run(state | run.attack.begin(state, classes=0), steps)["worst"].clone()


def make_attack(
    mixed: MixedClassifier, settings: AttackSettings, device: torch.device, *, compiled: bool
) -> TrainingAttack:
    """Return the attack on a mixture that a recipe names."""
    threat, steps, gray_box = settings.threat, settings.steps, settings.setting == "A"
    model = FastModel(mixed.gray_box() if gray_box else mixed, device, compiled=compiled)
    if settings.setting == "flip-standard":
        pgd, robust = TrainingPGD(threat, steps, objectives.flip_standard), without_transform(mixed.robust)
        return TargetedPGD(model, settings, pgd, ranking=FastModel(robust, device))
    if settings.setting == "C":
        losses = (objectives.cross_entropy_loss, objectives.targeted_dlr_loss)
        return RandomAPGD(model, settings, *(TrainingAPGD(threat, steps, loss=loss) for loss in losses))
    # A gray-box attacker has no gradient of alpha.
    return UntargetedPGD(model, settings, TrainingPGD(threat, steps, objectives.cross_entropy if gray_box else None))


def attack_through_robust(mixed: MixedClassifier, settings: AttackSettings, device: torch.device) -> TrainingAttack:
    """Return PGD on h alone, which hardly changes g."""
    pgd = TrainingPGD(settings.threat, settings.steps, objectives.cross_entropy)
    return UntargetedPGD(FastModel(without_transform(mixed.robust), device), settings, pgd)
