"""Attacks on the training images of a mixer, and the pseudo labels of the attacked images.

`AttackSettings` names one of the paper's settings A, B and C, or `flip-standard`. As in the paper, the radius, the
number of steps and the weight of the term that lowers alpha are random (sec. ada_exp).

- `MixtureAttacks` attacks one batch: some images through h alone, the others through the mixture.
- A `TrainingAttack` draws the random numbers of a batch and runs its attack.
- `TrainingPGD` and `TrainingAPGD` are the steps, which `BatchRunner` executes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.attacks import objectives
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine.arithmetic import FastModel
from adaptive_smoothing.attacks.engine.job_batch import JobBatch, Victim
from adaptive_smoothing.attacks.engine.recorder import Recorder
from adaptive_smoothing.attacks.objectives import Loss, LowerAlpha, Objective
from adaptive_smoothing.attacks.pgd import STEP_FACTOR, pgd_step
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import without_transform
from adaptive_smoothing.noise import generator
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.mixing.recipe import AttackSettings

# Probabilities with which `TargetedPGD` chooses the most likely incorrect class, the next one and so on.
TARGET_PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
# Share of the batches that setting C attacks without a target.
UNTARGETED = 0.25
# Least number of steps of an attack, if it is random.
LEAST_STEPS = 3
# Step size of `TargetedPGD`, in units of eps / steps.
TARGETED_STEP = 2.5


class MixtureAttacks:
    """The attacks of a recipe on the training images of a mixture.

    The share `through_robust` of a batch is attacked through h alone, the others by the attack `setting`.
    """

    def __init__(
        self, mixed: MixedClassifier, settings: AttackSettings, device: torch.device, *, compiled: bool
    ) -> None:
        self.share = settings.through_robust
        self.on_mixture = attack_on_mixture(mixed, settings, device, compiled=compiled)
        self.on_robust = attack_on_robust(mixed, settings, device)

    def __call__(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the attacked images and their pseudo labels: 0 for those attacked through h, 1 for the others."""
        pseudo_labels = torch.ones(len(batch.labels), device=batch.labels.device)
        count = round(self.share * len(batch.labels))
        if not count:
            return self.on_mixture(batch), pseudo_labels
        pseudo_labels[:count] = 0
        first, rest = (
            batch._replace(images=batch.images[part], labels=batch.labels[part], positions=batch.positions[part])
            for part in (slice(count), slice(count, None))
        )
        return torch.cat([self.on_robust(first), self.on_mixture(rest)]), pseudo_labels


def attack_on_mixture(
    mixed: MixedClassifier, settings: AttackSettings, device: torch.device, *, compiled: bool
) -> TrainingAttack:
    """Return the attack `settings.setting` on a mixture."""
    threat, steps = settings.threat, settings.steps
    model = FastModel(mixed.gray_box() if settings.setting == "A" else mixed, device, compiled=compiled)
    match settings.setting:
        case "A":  # a gray-box attacker has no gradient of alpha, so that a term that lowers alpha is useless
            return UntargetedPGD(model, settings, TrainingPGD(threat, steps, objectives.cross_entropy))
        case "B":
            return UntargetedPGD(model, settings, TrainingPGD(threat, steps))
        case "C":
            untargeted = TrainingAPGD(threat, steps, loss=objectives.cross_entropy_loss)
            targeted = TrainingAPGD(threat, steps, loss=objectives.targeted_dlr_loss)
            return RandomAPGD(model, settings, untargeted, targeted)
        case "flip-standard":
            robust = FastModel(without_transform(mixed.robust), device)
            pgd = TrainingPGD(threat, steps, objectives.flip_standard)
            return TargetedPGD(model, settings, pgd, ranking=robust)
        case other:
            raise AssertionError(f"no attack for the setting {other!r}")


def attack_on_robust(mixed: MixedClassifier, settings: AttackSettings, device: torch.device) -> TrainingAttack:
    """Return PGD on h alone, which hardly changes the prediction of g."""
    pgd = TrainingPGD(settings.threat, settings.steps, objectives.cross_entropy)
    return UntargetedPGD(FastModel(without_transform(mixed.robust), device), settings, pgd)


class TrainingAttack(ABC):
    """An attack on `model` with random numbers from the generator of each batch.

    `ranking` is the model that decides which classes are likely targets, by default `model`.
    """

    def __init__(
        self, model: FastModel, settings: AttackSettings, *attacks: StepAttack, ranking: FastModel | None = None
    ) -> None:
        self.settings, self.ranking = settings, ranking or model
        recorder = Recorder(model.device) if model.device.type == "cuda" else None
        self.runners = [BatchRunner(attack, model, recorder) for attack in attacks]

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
    def likely_targets(self, batch: TrainingBatch, count: int) -> Tensor:
        """Return [images, at most `count`]: the incorrect classes, the most likely first."""
        return most_likely_targets(self.ranking(batch.images), batch.labels, count)

    def _uniform(self, batch: TrainingBatch) -> Tensor:
        return torch.rand(len(batch.labels), generator=batch.noise, device=batch.labels.device)


class UntargetedPGD(TrainingAttack):
    """PGD from the clean images: settings A and B, and the attack on h alone."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        # Weights are drawn even if the objective has none, so that random numbers have the same order for all settings.
        weights, radii, steps = self.alpha_weights(batch), self.radii(batch), self.steps(batch)
        state = initial_state(batch, radii, step_size=STEP_FACTOR / steps)
        state |= {"weight": weights, "iterate": batch.images}
        return self.runners[0](state, steps)["iterate"].clone()


class TargetedPGD(TrainingAttack):
    """PGD from a random start towards a random class of the likely ones."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        threat, steps = self.radii(batch), self.steps(batch)
        classes = self.likely_targets(batch, len(TARGET_PROBABILITIES))
        probabilities = torch.tensor(TARGET_PROBABILITIES[: classes.shape[1]], device=classes.device)
        drawn = torch.multinomial(probabilities, len(classes), replacement=True, generator=batch.noise)
        targets = classes.gather(1, drawn[:, None]).squeeze(1)
        start = threat.project(batch.images + threat.random_delta(batch.images, batch.noise), batch.images)
        state = initial_state(batch, threat, step_size=TARGETED_STEP / steps) | {"target": targets, "iterate": start}
        return self.runners[0](state, steps)["iterate"].clone()


class RandomAPGD(TrainingAttack):
    """Setting C: APGD without or with a target, chosen at random for each batch, as both are part of AutoAttack."""

    def __call__(self, batch: TrainingBatch) -> Tensor:
        coin = torch.rand((), generator=generator(batch.noise.initial_seed(), "target"))
        run = self.runners[coin.item() >= UNTARGETED]
        count, device = len(batch.labels), batch.labels.device
        classes = self.likely_targets(batch, sys.maxsize)
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


def initial_state(batch: TrainingBatch, threat: Threat, step_size: float = 0.0) -> State:
    """Return the part of the state that all attacks share; `step_size` is in units of the radius."""
    eps = torch.as_tensor(threat.eps)
    return {
        "clean": batch.images,
        "label": batch.labels,
        "target": batch.labels,
        "eps": eps,
        "step_size": step_size * eps,
        "step": torch.zeros_like(batch.labels),
    }


@dataclass(frozen=True)
class TrainingPGD(StepAttack):
    """PGD with one step size per image; its result is the last iterate.

    The default objective is the cross-entropy and the term that lowers alpha, with one weight per image.
    """

    threat: Threat
    steps: int
    objective: Objective | None = None
    seed: int = 0

    def current_objective(self, state: State) -> Objective:
        return self.objective or LowerAlpha(objectives.cross_entropy_loss, state["weight"])

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        assert answer.gradient is not None
        threat = self.threat.with_eps(state["eps"])
        return {"iterate": pgd_step(threat, images, answer.gradient, state["step_size"], state["clean"])}


@dataclass(frozen=True)
class TrainingAPGD(APGD):
    """APGD on a loss and the term that lowers alpha, with one weight per image."""

    loss: Loss = objectives.cross_entropy_loss

    def current_objective(self, state: State) -> Objective:
        return LowerAlpha(self.loss, state["weight"])


class BatchRunner:
    """Runs the steps of an attack on one batch of training images after the other.

    On CUDA, a step is recorded once for each size of a batch. The weights change in place, so that the recording uses
    the current ones.
    """

    def __init__(self, attack: StepAttack, model: FastModel, recorder: Recorder | None = None) -> None:
        self.attack, self.victim, self.recorder = attack, Victim(model), recorder
        self.batches: dict[int, JobBatch] = {}

    def __call__(self, state: State, steps: int) -> State:
        """Return the state after these steps. The next call overwrites its tensors."""
        rows = len(state["label"])
        if rows in self.batches:
            self.batches[rows].load(state)
        else:
            owned = {name: value.clone() for name, value in state.items()}
            self.batches[rows] = JobBatch(self.attack, self.victim, owned, recorder=self.recorder)
        self.batches[rows].advance(steps)
        return self.batches[rows].state
