"""The recipe of a mixing network: everything that decides its weights, in one TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from adaptive_smoothing.settings import from_table
from adaptive_smoothing.threat import NORMS, Threat
from adaptive_smoothing.training.recipe import CommonRecipe, DataSettings, OptimizerSettings, among, at_least

MIXERS = ("network", "second-ending")
ATTACKS = ("A", "B", "C", "turning", "hostile")
UNFOOLED = ("keep", "drop")


@dataclass(frozen=True)
class MixerSettings:
    """Which network mixes. `network` is the paper's, with `width` and `depth`; `second-ending` grows out of h, with
    `hidden` units in its scorer.

    Taps that are not named are found. `tail_pace` is the learning rate of what was trained before, as a share.
    """

    kind: str = "network"
    width: int = 32
    depth: int = 1
    hidden: int = 128
    tail_pace: float = 0.1
    standard_taps: list[str] = field(default_factory=list)
    robust_taps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        among("kind", self.kind, MIXERS)
        for name in ("width", "depth", "hidden"):
            at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class AttackSettings:
    """Attacks on training images: the paper's settings A (gray-box PGD), B (PGD) and C (the APGD parts of
    AutoAttack), `turning`: PGD towards likely classes that turns g on the way, or `hostile`: PGD on h and alpha, with a
    g that says what the attacker wants.

    The radius of each image is eps times a random number between `smallest` and `largest`; the number of steps is
    random too, `steps` on average, unless `vary_steps` is off; a random weight up to `alpha_weight` is on the term that
    lowers alpha. A share `through_robust` of the images is attacked through h alone, which g withstands: there alpha
    should be 0. Images that an attack could not fool are kept as attacked ones, or with unfooled = "drop" left out.
    """

    setting: str = "C"
    norm: str = "Linf"
    eps: float = 8 / 255
    steps: int = 20
    vary_steps: bool = True
    smallest: float = 0.4
    largest: float = 1.1
    alpha_weight: float = 0.4
    through_robust: float = 0.125
    unfooled: str = "keep"

    def __post_init__(self) -> None:
        among("setting", self.setting, ATTACKS)
        among("norm", self.norm, NORMS)
        among("unfooled", self.unfooled, UNFOOLED)
        at_least("steps", self.steps, 1)
        if not 0 <= self.smallest <= self.largest:
            raise ValueError(f"expected 0 <= smallest <= largest, got {self.smallest} and {self.largest}")
        for name in ("alpha_weight", "through_robust"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"expected {name} in [0, 1), got {getattr(self, name)}")

    @property
    def threat(self) -> Threat:
        return NORMS[self.norm](self.eps)


@dataclass(frozen=True)
class LossSettings:
    """Eq. comp_loss: ce * CE + bce * BCE + product * CE * BCE, and `error`, which the paper has not: the smoothed
    count of errors, a sigmoid of the lead of the best wrong class. `attacked` weighs attacked images against others;
    with `dialled` it is multiplied by what makes turning the dial change nothing, as the dial is set by other means.
    """

    ce: float = 0.0
    bce: float = 1.5
    product: float = 0.2
    error: float = 0.0
    attacked: float = 1.0
    dialled: bool = False

    def __post_init__(self) -> None:
        for name in ("ce", "bce", "product", "error", "attacked"):
            at_least(name, getattr(self, name), 0)
        if self.ce + self.bce + self.product + self.error == 0:
            raise ValueError("expected a loss with a positive weight, got zeros: set ce, bce, product or error")


@dataclass(frozen=True)
class OperatingPointSettings:
    """How the score is read in training: alpha = low + (1 - low) sigmoid(scale * score + shift).

    `low` is less for a pair in which g would not win back enough with it.

    With `recover` > 0 the shift is set again every `every` steps, so that on validation images the mixture wins back
    that share of the clean accuracy that h loses to g; with `clean_accuracy` > 0, so that it has that. The network
    learns where it will be used.
    """

    scale: float = 2.0
    shift: float = 0.4
    low: float = 0.0
    recover: float = 0.0
    clean_accuracy: float = 0.0
    every: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.low < 1:
            raise ValueError(f"expected low to be an alpha in [0, 1), got {self.low}")
        at_least("every", self.every, 1)
        if not 0 <= self.recover < 1:
            raise ValueError(f"expected recover to be a share in [0, 1), got {self.recover}")
        if not 0 <= self.clean_accuracy <= 1:
            raise ValueError(f"expected clean_accuracy to be a share in [0, 1], got {self.clean_accuracy}")

    @property
    def turns(self) -> bool:
        """Whether it moves in training."""
        return bool(self.recover or self.clean_accuracy)


@dataclass(frozen=True)
class MixingOptimizer(OptimizerSettings):
    """AdamW, as the paper has it; `weight_perturbation` is the strength of an adversary in weight space (AWP)."""

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
    """Of a mixing network for two classifiers that stay as they are."""

    optimizer: MixingOptimizer = MixingOptimizer()
    mixer: MixerSettings = MixerSettings()
    attack: AttackSettings = AttackSettings()
    loss: LossSettings = LossSettings()
    dial: OperatingPointSettings = OperatingPointSettings()
    standard_scale: float = 1.0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.dialled and not self.dial.turns:
            raise ValueError(
                "expected dial.recover or dial.clean_accuracy > 0 with loss.dialled, got 0: nothing else says where "
                "the dial stands"
            )
        if self.attack.setting == "hostile" and self.attack.through_robust:
            raise ValueError(
                f"expected through_robust = 0 in the hostile setting, got {self.attack.through_robust:g}: "
                "a g that says what the attacker wants does not withstand anything"
            )
        if self.attack.setting == "hostile" and self.mixer.kind != "second-ending":
            raise ValueError(
                "expected mixer.kind second-ending for the hostile setting, got network: "
                "it reads features of g, and a hostile g has none"
            )


def default_recipe(
    threat: Threat, name: str = "mixing", kind: str = "second-ending", *, clean_accuracy: float = 0.0, size: int = 32
) -> MixingRecipe:
    """What is used where no recipe is named: for a second ending the setting that holds best (docs/results.md), for the
    paper's network its setting C.

    A second ending is trained for the wanted clean accuracy, or for one between those of h and g. `size` of the images.
    """
    if isinstance(threat.eps, Tensor):
        raise ValueError("expected one radius for all images, got one per image: pass ads.Linf(8 / 255) or its like")
    against = {"norm": threat.norm, "eps": threat.eps}
    if kind == "network":
        return MixingRecipe(name=name, attack=from_table(AttackSettings, against | {"setting": "C", "steps": 75}))
    turning = {
        "setting": "turning",
        "steps": 10,
        "vary_steps": False,
        "smallest": 1.0,
        "largest": 1.0,
        "through_robust": 0.0,
    }
    return MixingRecipe(
        name=name,
        optimizer=MixingOptimizer(
            epochs=12, weight_decay=1e-3, gradient_clip=1.0, ema=0.997, weight_perturbation=0.005
        ),
        mixer=MixerSettings(kind=kind),
        attack=from_table(AttackSettings, against | turning),
        loss=LossSettings(ce=0.0, bce=0.0, product=0.0, error=1.0, dialled=True),
        dial=OperatingPointSettings(scale=1.0, shift=1.7, low=0.5, recover=0.6, clean_accuracy=clean_accuracy),
        data=DataSettings(cutout=size // 4),
        standard_scale=3.0,
    )
