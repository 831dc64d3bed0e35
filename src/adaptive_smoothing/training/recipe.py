"""The recipe of a base classifier, and the settings that all recipes share.

A recipe is a TOML file with everything that determines the weights.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from adaptive_smoothing.data.policies import POLICIES
from adaptive_smoothing.settings.checks import check_at_least, check_below_one, check_choice, check_count
from adaptive_smoothing.threat import NORMS, Threat

METHODS = ("standard", "at", "trades", "hat", "dajat", "iaat", "gaussian")
DIVERGENCE_METHODS = ("trades", "hat", "dajat")
ATTACK_LOSSES = ("cross-entropy", "kl", "margin")
SCHEDULES = ("linear", "cosine")
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class DataSettings:
    """The data set and its augmentation. Training uses the split `train`, validation the split `val`.

    Args:
        name: a data set that `load_data` accepts.
        pad: pixels around an image, out of which a random part of the old size is cut.
        flip: flip half of the images from left to right.
        cutout: side of a square that is removed from each image; 0: none.
        policy: an augmentation policy of torchvision (autoaugment, trivialaugment, randaugment), or `mild`, one random
            small change of colour or shape. It is applied before the rest; empty: none.
        second_policy: the policy of the second stream, for the method `dajat`.
    """

    name: str = "cifar10"
    pad: int = 4
    flip: bool = True
    cutout: int = 0
    policy: str = ""
    second_policy: str = ""

    def __post_init__(self) -> None:
        check_choice("data.policy", self.policy, ("", *POLICIES))
        check_choice("data.second_policy", self.second_policy, ("", *POLICIES))


@dataclass(frozen=True)
class ThreatSettings:
    """The norm and the radius of the attacks on training images.

    Args:
        norm: Linf or L2.
        eps: the radius.
    """

    norm: str = "Linf"
    eps: float = 8 / 255

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, NORMS)
        check_at_least(0, eps=self.eps)

    @property
    def threat(self) -> Threat:
        """Return the threat model."""
        return NORMS[self.norm](self.eps)


@dataclass(frozen=True)
class OptimizerSettings:
    """SGD with Nesterov momentum, or AdamW.

    The learning rate rises to `lr` during the share `warmup` of the steps and decays to zero.

    Args:
        kind: sgd or adamw.
        epochs: passes over the training images.
        batch_size: images per step.
        lr: the largest learning rate.
        momentum: the momentum of SGD.
        weight_decay: the decay of the weights.
        decay_norms: whether batch norms and biases decay as well. Decay makes the factors of batch norms small, and
            SiLU is nearly linear for small inputs (docs/log.md, base classifiers, round 9).
        schedule: how the learning rate decays: linear or cosine.
        warmup: the share of the steps in which the learning rate rises.
        gradient_clip: the largest norm of a gradient; 0: no limit.
        ema: the decay of the average of the weights.
    """

    kind: str = "sgd"
    epochs: int = 30
    batch_size: int = 512
    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_norms: bool = True
    schedule: str = "linear"
    warmup: float = 0.1
    gradient_clip: float = 0.0
    ema: float = 0.998

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_count(epochs=self.epochs, batch_size=self.batch_size)
        check_at_least(0, lr=self.lr)
        check_below_one("ema as a decay", self.ema)
        check_below_one("warmup as a share of the steps", self.warmup)


@dataclass(frozen=True, kw_only=True)
class CommonRecipe:
    """The settings that all recipes share.

    Args:
        name: names the files of the run.
        seed: seed of all random numbers.
        evaluate_every: epochs between two measurements on validation images.
    """

    name: str
    data: DataSettings = DataSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    seed: int = 0
    evaluate_every: int = 10

    def __post_init__(self) -> None:
        check_count(evaluate_every=self.evaluate_every)
        if not re.fullmatch(r"[\w.-]*\w", self.name):
            raise ValueError(f"expected a name of letters, digits, '.', '_' and '-', got {self.name!r}: it names files")

    def lr_factor(self, step: int, total: int) -> float:
        """Return the learning rate at a step as a share of the largest one."""
        warm = max(1, round(self.optimizer.warmup * total))
        if step < warm:
            return (step + 1) / warm
        progress = (step - warm) / max(1, total - warm)
        return 1 - progress if self.optimizer.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class ModelSettings:
    """The name of an architecture and its options.

    Args:
        arch: an architecture of this package, such as preact_resnet18.
        options: the arguments of its constructor.
    """

    arch: str
    options: dict[str, Any] = field(default_factory=dict)

    def options_for(self, num_classes: int) -> dict[str, Any]:
        """Return the options of `architectures.build` for a data set with this number of classes."""
        options = {"num_classes": num_classes, **self.options}
        if options["num_classes"] != num_classes:
            given = options["num_classes"]
            raise ValueError(f"expected model.options.num_classes = {num_classes} (data), got {given}: leave it out")
        return options


@dataclass(frozen=True)
class MethodSettings(ThreatSettings):
    """The training method (see `base_methods`).

    - `standard` trains on clean images. `logit_margin` is subtracted from the logit of the label, for larger margins of
      Lipschitz networks.
    - `at` trains on PGD examples. The default step size is 2.5 * eps / steps.
    - `trades` adds beta * KL(clean || attacked).
    - `hat` is `trades` with helper images. A helper image has `helper_length` times the perturbation of the attacked
      image. Its label is the class that the standard classifier `helper` predicts for the attacked image.
    - `dajat` is `trades` in two streams, the second with `data.second_policy` and batch norms of its own. `consistency`
      is the weight of the divergence between their predictions on clean images.
    - `iaat` has one radius per training image, which changes by `radius_step` and is smoothed by `radius_smoothing`.
    - `gaussian` trains on noisy `copies` of each image for randomized smoothing, with a `consistency` term.

    Args:
        name: one of these methods.
        steps: steps of PGD.
        step_size: size of a step; by default that of the method.
        radius_growth: the share of the training in which the radius and the step size grow from 0, for `at`, `trades`,
            `hat` and `dajat`; 0: they are constant.
        attack_loss: what PGD maximises: `cross-entropy`; `kl`, the divergence from the clean predictions; or `margin`,
            the largest probability of an incorrect class minus that of the label. By default `kl` for `trades`, `hat`
            and `dajat`, else `cross-entropy`. In few steps, PGD on `margin` fools far more images than on `kl`.
        beta: weight of the KL term of `trades`, `hat` and `dajat`.
        helper: the name or path of a standard classifier, for `hat`.
        helper_length: length of the perturbation of a helper image, as a multiple of that of the attacked image.
        helper_weight: weight of the helper images.
        sigma: standard deviation of the noise of `gaussian`.
        copies: noisy copies of each image, for `gaussian`.
        consistency: weight of the term that makes copies or streams agree, for `gaussian` and `dajat`.
        radius_step: how far the radius of an image moves in an epoch, for `iaat`.
        radius_smoothing: the share of the way that the radius takes towards its target, for `iaat`.
        radius_warmup: epochs before radii move, for `iaat`.
        label_smoothing: the probability that is spread over all classes in the cross-entropy.
        logit_margin: subtracted from the logit of the label, for `standard`.
        weight_perturbation: strength of adversarial weight perturbation (AWP); 0: none.
        perturbation_warmup: the share of the steps before AWP begins.
    """

    name: str = "standard"
    steps: int = 10
    step_size: float | None = None
    radius_growth: float = 0.0
    attack_loss: str = ""
    beta: float = 6.0
    helper: str = ""
    helper_length: float = 2.0
    helper_weight: float = 0.5
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
        super().__post_init__()
        check_choice("method", self.name, METHODS)
        check_count(steps=self.steps, copies=self.copies)
        if self.attack_loss:
            check_choice("attack_loss", self.attack_loss, ATTACK_LOSSES)
        if self.attack_loss == "kl" and self.name not in DIVERGENCE_METHODS:
            methods = ", ".join(DIVERGENCE_METHODS)
            raise ValueError(f"expected attack_loss kl with {methods} only, got it with {self.name}: leave it out")
        check_at_least(0, helper_length=self.helper_length, helper_weight=self.helper_weight)
        check_at_least(0, beta=self.beta, sigma=self.sigma, consistency=self.consistency)
        check_at_least(0, logit_margin=self.logit_margin, weight_perturbation=self.weight_perturbation)
        check_below_one("perturbation_warmup as a share of the steps", self.perturbation_warmup)
        if not 0 <= self.radius_growth <= 1:
            raise ValueError(f"expected radius_growth from 0 to 1, a share of the training, got {self.radius_growth}")
        if (self.name == "hat") != bool(self.helper):
            found = f"the method {self.name} and the helper {self.helper!r}"
            hint = 'set method.helper = "resnet18-standard", or remove it'
            raise ValueError(f"expected method.helper with the method hat and only with it, got {found}: {hint}")
        if self.name == "gaussian" and self.consistency and self.copies < 2:
            raise ValueError(f"expected at least 2 copies with consistency, got {self.copies}: set method.copies")

    @property
    def attack_step(self) -> float:
        """Return the step size of the attack."""
        return self.step_size if self.step_size is not None else 2.5 * self.eps / self.steps


@dataclass(frozen=True, kw_only=True)
class Recipe(CommonRecipe):
    """The recipe of a base classifier."""

    model: ModelSettings
    method: MethodSettings = MethodSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.method.name == "dajat") != bool(self.data.second_policy):
            expected = "data.second_policy with the method dajat and only with it"
            found = f"the method {self.method.name} and the second policy {self.data.second_policy!r}"
            raise ValueError(f'expected {expected}, got {found}: set data.second_policy = "autoaugment", or remove it')
