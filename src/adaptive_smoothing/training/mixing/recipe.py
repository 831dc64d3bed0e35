"""The recipe of a mixer, such as the paper's mixing network: a TOML file with everything that determines its weights.

`OLD_KEYS`, `OLD_VALUES` and `RETIRED` of a class are the spellings of stored files (see `settings.from_table`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from adaptive_smoothing.mixing.mixers import MIXERS, OLD_KINDS
from adaptive_smoothing.settings.checks import check_at_least, check_below_one, check_choice, check_count
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.recipe import CommonRecipe, OptimizerSettings, ThreatSettings

ATTACKS = ("A", "B", "C", "flip-standard")
DEFAULT = Path(__file__).with_name("default.toml")


@dataclass(frozen=True)
class MixerSettings:
    """The mixer: the paper's `network` with `width` and `depth`, or a `fine-tuned-tail` of h with `hidden` units.

    Args:
        kind: network or fine-tuned-tail.
        width: channels of the first stage of a network.
        depth: residual blocks in each stage of a network.
        hidden: width of the layers of a fine-tuned tail that compute the score.
        tail_lr_factor: multiplies the learning rate of a fine-tuned tail.
        standard_taps, robust_taps: the layers of g and h whose features the mixer reads; by default they are chosen
            automatically.
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"tail_pace": "tail_lr_factor"}
    OLD_VALUES: ClassVar[dict[str, dict[str, str]]] = {"kind": OLD_KINDS}

    kind: str = "network"
    width: int = 32
    depth: int = 1
    hidden: int = 128
    tail_lr_factor: float = 0.1
    standard_taps: list[str] = field(default_factory=list)
    robust_taps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MIXERS)
        check_count(width=self.width, depth=self.depth, hidden=self.hidden)


@dataclass(frozen=True)
class AttackSettings(ThreatSettings):
    """Attacks on training images (sec. ada_exp of the paper).

    Args:
        setting: the paper's A (gray-box PGD), B (white-box PGD) or C (the APGD attacks of AutoAttack), or
            `flip-standard`: PGD towards likely classes that also makes g predict the target.
        steps, vary_steps: the number of steps. With `vary_steps` it is random, with this mean.
        eps_factor_min, eps_factor_max: the radius of an image is eps times a random number from this range.
        alpha_weight: the largest weight of the term that lowers alpha. The weight of an image is random.
        through_robust: the share of the images that is attacked through h alone. That hardly changes g, so alpha
            should be 0 there.
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"smallest": "eps_factor_min", "largest": "eps_factor_max"}
    OLD_VALUES: ClassVar[dict[str, dict[str, str]]] = {"setting": {"turning": "flip-standard"}}
    RETIRED: ClassVar[dict[str, object]] = {"unfooled": "keep"}

    setting: str = "C"
    steps: int = 20
    vary_steps: bool = True
    eps_factor_min: float = 0.4
    eps_factor_max: float = 1.1
    alpha_weight: float = 0.4
    through_robust: float = 0.125

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("setting", self.setting, ATTACKS)
        check_count(steps=self.steps)
        check_below_one("alpha_weight", self.alpha_weight)
        check_below_one("through_robust", self.through_robust)
        least, most = self.eps_factor_min, self.eps_factor_max
        if not 0 <= least <= most:
            raise ValueError(f"expected 0 <= eps_factor_min <= eps_factor_max, got {least} and {most}")


@dataclass(frozen=True)
class LossSettings:
    """Weights of the composite loss, eq. comp_loss: ce * CE + bce * BCE + product * CE * BCE.

    Args:
        ce, bce, product: weights of the terms of the paper.
        error: weight of a term that the paper does not have: a sigmoid of the lead of the best incorrect class.
        attacked: weight of attacked images. Clean images have the weight 1.
        balanced: multiply `attacked` by the factor for which alpha_shift does not change the loss (`AttackedWeight`).
    """

    OLD_KEYS: ClassVar[dict[str, str]] = {"dialled": "balanced"}

    ce: float = 0.0
    bce: float = 1.5
    product: float = 0.2
    error: float = 0.0
    attacked: float = 1.0
    balanced: bool = False

    def __post_init__(self) -> None:
        check_at_least(0, ce=self.ce, bce=self.bce, product=self.product, error=self.error, attacked=self.attacked)
        if self.ce + self.bce + self.product + self.error == 0:
            raise ValueError("expected a loss with a positive weight, got zeros: set ce, bce, product or error")


@dataclass(frozen=True)
class OperatingPointSettings:
    """Alpha in training: alpha = low + (1 - low) * sigmoid(scale * score + shift).

    Without a target for the clean accuracy, `scale`, `shift` and `low` are used as they are. With one, `shift` is only
    the start: every `every` steps it is set to the largest shift that has the target accuracy on validation images. So
    training uses the operating point of the final mixture. `low` is then reduced for a pair that needs more of g.

    Args:
        low: the smallest alpha. A confident g decides below an alpha of 1/2, where the loss is flat, so that nothing is
            learned there.
        scale, shift: the numbers in the formula of alpha.
        recover: the target as a share of the way from the clean accuracy of h to that of g; 0: no target.
        clean_accuracy: the target itself, which replaces `recover`; 0: no target.
        every: steps between two choices of the shift.
    """

    scale: float = 2.0
    shift: float = 0.4
    low: float = 0.0
    recover: float = 0.0
    clean_accuracy: float = 0.0
    every: int = 10

    def __post_init__(self) -> None:
        check_below_one("low", self.low)
        check_below_one("recover", self.recover)
        check_count(every=self.every)
        if not 0 <= self.clean_accuracy <= 1:
            raise ValueError(f"expected clean_accuracy in [0, 1], got {self.clean_accuracy}: pass 0.9 for 90 %")

    @property
    def has_target(self) -> bool:
        """Return whether the shift is chosen for a clean accuracy in training."""
        return bool(self.recover or self.clean_accuracy)


@dataclass(frozen=True)
class MixingOptimizer(OptimizerSettings):
    """AdamW, as in the paper.

    Args:
        weight_perturbation: strength of adversarial weight perturbation (AWP); 0: none.
    """

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
        check_at_least(0, weight_perturbation=self.weight_perturbation)


@dataclass(frozen=True, kw_only=True)
class MixingRecipe(CommonRecipe):
    """The recipe of a mixer for two classifiers that are not changed.

    docs/reference/cli.md has the meaning of every key (verb `mix`).

    Args:
        standard_scale: multiplies the logits of g.

    Examples:
        >>> recipe = ads.MixingRecipe(name="mine")
        >>> recipe.attack.threat, recipe.optimizer.epochs
        (Linf(eps=0.03137254901960784), 3)
    """

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
        if self.data.second_policy:
            hint = "set data.policy, or remove it"
            raise ValueError(f"expected no second stream for a mixer, got {self.data.second_policy!r}: {hint}")
        if self.loss.balanced and not self.operating_point.has_target:
            wanted = "operating_point.recover or operating_point.clean_accuracy > 0 with loss.balanced"
            raise ValueError(f"expected {wanted}, got 0: the shift would have no target")


def default_recipe(
    threat: Threat, name: str = "mixing", kind: str = "fine-tuned-tail", *, clean_accuracy: float = 0.0, size: int = 32
) -> MixingRecipe:
    """Return the default recipe: `default.toml` for a fine-tuned tail, the paper's setting C for its network.

    Images are `size` x `size`. Without a `clean_accuracy`, a fine-tuned tail is trained for one between those of h and
    g, and a network for none.
    """
    if isinstance(threat.eps, Tensor):
        raise ValueError("expected one radius for all images, got one per image: pass ads.Linf(8 / 255) or similar")
    if kind == "network":
        recipe = MixingRecipe(name=name, attack=AttackSettings(setting="C", steps=75))
    else:
        recipe = read_toml(DEFAULT, MixingRecipe)
        recipe = replace(recipe, name=name, data=replace(recipe.data, cutout=size // 4))
    return replace(
        recipe,
        attack=replace(recipe.attack, norm=threat.norm, eps=float(threat.eps)),
        operating_point=replace(recipe.operating_point, clean_accuracy=clean_accuracy),
    )
