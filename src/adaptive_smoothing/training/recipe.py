"""A training recipe: everything that determines the weights, in one TOML file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from adaptive_smoothing.threat import NORMS, Threat

METHODS = ("standard", "at", "trades", "iaat", "gaussian")
SCHEDULES = ("linear", "cosine")
OPTIMIZERS = ("sgd", "adamw")


def among(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"expected {name} to be one of {', '.join(allowed)}, got {value!r}")


def at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise ValueError(f"expected {name} of at least {least}, got {value}")


def below_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"expected {name} in [0, 1), got {value}")


@dataclass(frozen=True)
class ModelSettings:
    """The name of an architecture and its options."""

    arch: str
    options: dict[str, Any] = field(default_factory=dict)

    def options_for(self, num_classes: int) -> dict[str, Any]:
        """Return the options of `architectures.build` for a data set of so many classes."""
        options = {"num_classes": num_classes, **self.options}
        if options["num_classes"] != num_classes:
            given = options["num_classes"]
            raise ValueError(f"expected model.options.num_classes = {num_classes} (data), got {given}: leave it out")
        return options


@dataclass(frozen=True)
class DataSettings:
    """The data set and its augmentation. Training uses the split `train`, validation the split `val`."""

    name: str = "cifar10"
    pad: int = 4
    flip: bool = True
    cutout: int = 0


@dataclass(frozen=True)
class MethodSettings:
    """The training method (see `base_methods`).

    `at` trains on PGD examples, `trades` adds beta * KL(clean || attacked), `iaat` has one radius per training image,
    and `gaussian` trains on noisy `copies` of each image for randomized smoothing, with a `consistency` term. The
    default step size is 2.5 * eps / steps: 2/255 for ten steps at 8/255. `logit_margin` is subtracted from the logit of
    the label, for larger margins of Lipschitz networks.
    """

    name: str = "standard"
    norm: str = "Linf"
    eps: float = 8 / 255
    steps: int = 10
    step_size: float | None = None
    beta: float = 6.0
    sigma: float = 0.25
    copies: int = 1
    consistency: float = 0.0
    radius_step: float = 1.9 / 255
    radius_smoothing: float = 0.1
    radius_warmup: int = 5
    label_smoothing: float = 0.0
    logit_margin: float = 0.0
    weight_perturbation: float = 0.0
    perturbation_warmup: float = 0.0

    def __post_init__(self) -> None:
        among("method", self.name, METHODS)
        among("norm", self.norm, NORMS)
        at_least("steps", self.steps, 1)
        at_least("copies", self.copies, 1)
        if self.consistency and self.copies < 2:
            raise ValueError(f"expected at least 2 copies with consistency, got {self.copies}: set method.copies")
        for name in ("eps", "beta", "sigma", "consistency", "logit_margin", "weight_perturbation"):
            at_least(name, getattr(self, name), 0)

    @property
    def attack_step(self) -> float:
        return self.step_size if self.step_size is not None else 2.5 * self.eps / self.steps

    @property
    def threat(self) -> Threat:
        return NORMS[self.norm](self.eps)


@dataclass(frozen=True)
class OptimizerSettings:
    """SGD with Nesterov momentum, or AdamW, with a warm-up of the learning rate and a decay to zero."""

    kind: str = "sgd"
    epochs: int = 30
    batch_size: int = 512
    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "linear"
    warmup: float = 0.1
    gradient_clip: float = 0.0
    ema: float = 0.998

    def __post_init__(self) -> None:
        among("kind", self.kind, OPTIMIZERS)
        among("schedule", self.schedule, SCHEDULES)
        at_least("epochs", self.epochs, 1)
        at_least("batch_size", self.batch_size, 1)
        at_least("lr", self.lr, 0)
        below_one("ema to be a decay", self.ema)
        below_one("warmup to be a share of the steps", self.warmup)


@dataclass(frozen=True, kw_only=True)
class CommonRecipe:
    """The part that all recipes share."""

    name: str
    data: DataSettings = DataSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    seed: int = 0
    evaluate_every: int = 10

    def __post_init__(self) -> None:
        at_least("evaluate_every", self.evaluate_every, 1)
        if not re.fullmatch(r"[\w.-]*\w", self.name):
            raise ValueError(f"expected a name of letters, digits, '.', '_' and '-', got {self.name!r}: it names files")

    def lr_factor(self, step: int, total: int) -> float:
        """Return the learning rate at a step as a share of the largest one."""
        warm = max(1, round(self.optimizer.warmup * total))
        if step < warm:
            return (step + 1) / warm
        progress = (step - warm) / max(1, total - warm)
        return 1 - progress if self.optimizer.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class Recipe(CommonRecipe):
    """The recipe of a base classifier."""

    model: ModelSettings
    method: MethodSettings = MethodSettings()
