"""The recipe of a mixing network: everything that determines its weights, in one TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from adaptive_smoothing.settings import read_toml
from adaptive_smoothing.threat import NORMS, Threat
from adaptive_smoothing.training.recipe import CommonRecipe, OptimizerSettings, among, at_least, below_one

MIXERS = ("network", "fine-tuned-tail")
ATTACKS = ("A", "B", "C", "flip-standard")
DEFAULT = Path(__file__).with_name("default.toml")


@dataclass(frozen=True)
class MixerSettings:
    """The mixer: the paper's `network` with `width` and `depth`, or a `fine-tuned-tail` of h with `hidden` units.

    Taps that are not named are chosen automatically. `tail_lr_factor` multiplies the learning rate of the tail.
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"tail_pace": "tail_lr_factor"}
    OLD_VALUES: ClassVar[dict[str, dict[str, str]]] = {"kind": {"second-ending": "fine-tuned-tail"}}

    kind: str = "network"
    width: int = 32
    depth: int = 1
    hidden: int = 128
    tail_lr_factor: float = 0.1
    standard_taps: list[str] = field(default_factory=list)
    robust_taps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        among("kind", self.kind, MIXERS)
        for name in ("width", "depth", "hidden"):
            at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class AttackSettings:
    """Attacks on training images (sec. ada_exp of the paper).

    `setting` is one of the paper's A (gray-box PGD), B (white-box PGD) and C (the APGD attacks of AutoAttack), or
    `flip-standard`: PGD towards likely classes that also makes g predict the target. The radius of an image is eps
    times a random number from `eps_factor_min` to `eps_factor_max`. The number of steps is random with mean `steps`,
    unless `vary_steps` is off. The term that lowers alpha has a random weight up to `alpha_weight`. A share
    `through_robust` of the images is attacked through h alone. That hardly changes g, so alpha should be 0 there.
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"smallest": "eps_factor_min", "largest": "eps_factor_max"}
    OLD_VALUES: ClassVar[dict[str, dict[str, str]]] = {"setting": {"turning": "flip-standard"}}
    RETIRED: ClassVar[dict[str, object]] = {"unfooled": "keep"}

    setting: str = "C"
    norm: str = "Linf"
    eps: float = 8 / 255
    steps: int = 20
    vary_steps: bool = True
    eps_factor_min: float = 0.4
    eps_factor_max: float = 1.1
    alpha_weight: float = 0.4
    through_robust: float = 0.125

    def __post_init__(self) -> None:
        among("setting", self.setting, ATTACKS)
        among("norm", self.norm, NORMS)
        at_least("steps", self.steps, 1)
        least, most = self.eps_factor_min, self.eps_factor_max
        if not 0 <= least <= most:
            raise ValueError(f"expected 0 <= eps_factor_min <= eps_factor_max, got {least} and {most}")
        below_one("alpha_weight", self.alpha_weight)
        below_one("through_robust", self.through_robust)

    @property
    def threat(self) -> Threat:
        return NORMS[self.norm](self.eps)


@dataclass(frozen=True)
class LossSettings:
    """Weights of the composite loss, eq. comp_loss: ce * CE + bce * BCE + product * CE * BCE.

    `error` weighs a term that the paper does not have: a sigmoid of the lead of the best incorrect class. `attacked` is
    the weight of attacked images, with `balanced` times the factor for which alpha_shift does not change the loss.
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"dialled": "balanced"}

    ce: float = 0.0
    bce: float = 1.5
    product: float = 0.2
    error: float = 0.0
    attacked: float = 1.0
    balanced: bool = False

    def __post_init__(self) -> None:
        for name in ("ce", "bce", "product", "error", "attacked"):
            at_least(name, getattr(self, name), 0)
        if self.ce + self.bce + self.product + self.error == 0:
            raise ValueError("expected a loss with a positive weight, got zeros: set ce, bce, product or error")


@dataclass(frozen=True)
class OperatingPointSettings:
    """Alpha in training: alpha = low + (1 - low) sigmoid(scale * score + shift).

    `low` becomes smaller for a pair that needs more of g. With `recover` > 0 the shift is chosen anew every `every`
    steps, such that the mixture recovers that share of the clean accuracy that h has less than g on validation images.
    With `clean_accuracy` > 0 it is chosen for that clean accuracy. So training uses the shift of the final mixture.
    """

    scale: float = 2.0
    shift: float = 0.4
    low: float = 0.0
    recover: float = 0.0
    clean_accuracy: float = 0.0
    every: int = 10

    def __post_init__(self) -> None:
        below_one("low", self.low)
        below_one("recover", self.recover)
        at_least("every", self.every, 1)
        if not 0 <= self.clean_accuracy <= 1:
            raise ValueError(f"expected clean_accuracy in [0, 1], got {self.clean_accuracy}: pass 0.9 for 90 %")

    @property
    def has_target(self) -> bool:
        """Return whether the shift is chosen for a clean accuracy in training."""
        return bool(self.recover or self.clean_accuracy)


@dataclass(frozen=True)
class MixingOptimizer(OptimizerSettings):
    """AdamW, as in the paper; `weight_perturbation` is the strength of adversarial weight perturbation (AWP)."""

    kind: str = "adamw"
    epochs: int = 3
    batch_size: int = 500
    lr: float = 1e-3
    weight_decay: float = 1e-5
    schedule: str = "cosine"
    warmup: float = 0.04
    gradient_clip: float = 10.0
    ema: float = 0.8
    weight_perturbation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("weight_perturbation", self.weight_perturbation, 0)


@dataclass(frozen=True, kw_only=True)
class MixingRecipe(CommonRecipe):
    """The recipe of a mixing network for two classifiers that are not changed."""

    OLD_KEYS: ClassVar[dict[str, str]] = {"dial": "operating_point"}

    optimizer: MixingOptimizer = MixingOptimizer()
    mixer: MixerSettings = MixerSettings()
    attack: AttackSettings = AttackSettings()
    loss: LossSettings = LossSettings()
    operating_point: OperatingPointSettings = OperatingPointSettings()
    standard_scale: float = 1.0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.balanced and not self.operating_point.has_target:
            wanted = "operating_point.recover or operating_point.clean_accuracy > 0 with loss.balanced"
            raise ValueError(f"expected {wanted}, got 0: the shift would have no target")


def default_recipe(
    threat: Threat, name: str = "mixing", kind: str = "fine-tuned-tail", *, clean_accuracy: float = 0.0, size: int = 32
) -> MixingRecipe:
    """Return the default recipe: `default.toml` for a fine-tuned tail, the paper's setting C for its network.

    By default a fine-tuned tail is trained for a clean accuracy between those of h and g. Images are `size` x `size`.
    """
    if isinstance(threat.eps, Tensor):
        raise ValueError("expected one radius for all images, got one per image: pass ads.Linf(8 / 255) or similar")
    norm, eps = threat.norm, float(threat.eps)
    if kind == "network":
        return MixingRecipe(name=name, attack=AttackSettings(setting="C", norm=norm, eps=eps, steps=75))
    recipe = read_toml(DEFAULT, MixingRecipe)
    return replace(
        recipe,
        name=name,
        attack=replace(recipe.attack, norm=norm, eps=eps),
        operating_point=replace(recipe.operating_point, clean_accuracy=clean_accuracy),
        data=replace(recipe.data, cutout=size // 4),
    )
