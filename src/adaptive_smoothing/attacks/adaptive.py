"""The attacks that a mixed classifier deserves, and the paper's settings A to D and STD, ROB, MIX by name.

Transfer and gray-box attacks are made on a view of the model and judged on the model itself: every step of APGD, and
what PGD ends with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import TARGETS, AutoAttack, FastAttack
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.losses import cross_entropy_loss, targeted_dlr_loss
from adaptive_smoothing.attacks.objectives import (
    LowerAlpha,
    cross_entropy,
    flip_standard,
    flip_standard_margin,
    targeted_dlr,
    targeted_margin,
    worst_case_standard,
)
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.views import (
    AtAlpha,
    Base,
    GrayBox,
    Plain,
    Smooth,
    has_differentiable_standard,
    has_flat_part,
    has_hard_part,
    has_steep_part,
    lacks_learned_alpha,
    learns_alpha,
    learns_beside_a_steep_part,
    mixes,
    mixes_probabilities,
)
from adaptive_smoothing.threat import Threat

# Weights of the term that lowers alpha; the paper's reference evaluates with the middle one.
ALPHA_WEIGHTS = (0.1, 0.5, 0.9)
# The one that is tried again with a gradient of alpha where it is clipped.
SMOOTH_WEIGHT = 0.5
# Mixtures whose attacks are tried on the one under attack.
OTHER_ALPHAS = (0.5, 0.9)


def AdaptiveAttack(threat: Threat, *, seed: int = 0) -> Cascade:
    """AutoAttack and whatever else the model could fall to; stages that make no sense for a model are left out.

    All that follows the model's own gradient comes first: what is left for FAB, Square and transfers is an alarm.
    """
    ce, targeted, fab, square, precise = AutoAttack(threat, seed=seed).stages
    margin, turning, hostile, beside = (
        APGD(threat, climb=climb, target_classes=TARGETS, seed=seed)
        for climb in (targeted_margin, flip_standard, worst_case_standard, flip_standard_margin)
    )
    stages = (
        ce,
        targeted,
        Stage("apgd-margin-t", margin),
        Stage("turning-t", turning, needs=has_differentiable_standard),
        Stage("hostile-t", hostile, needs=learns_alpha),
        *(stage for weight in ALPHA_WEIGHTS for stage in lowering_alpha(threat, weight, seed)),
        Stage("smooth-margin-t", margin, Smooth(), has_hard_part),
        Stage("smooth-turning-t", turning, Smooth(), has_hard_part),
        Stage("smooth-hostile-t", hostile, Smooth(), has_flat_part),
        Stage("plain-turning-t", turning, Plain(), has_steep_part),
        Stage("plain-hostile-t", hostile, Plain(), learns_beside_a_steep_part),
        Stage("plain-h-t", beside, Plain(alpha=1.0), has_steep_part),
        *(
            replace(stage, key=f"plain-{stage.key}", source=Plain(), needs=learns_beside_a_steep_part)
            for stage in lowering_alpha(threat, SMOOTH_WEIGHT, seed)
        ),
        *(
            replace(stage, key=f"smooth-{stage.key}", source=Smooth())
            for stage in lowering_alpha(threat, SMOOTH_WEIGHT, seed)
        ),
        Stage("gray-ce", APGD(threat, climb=cross_entropy, seed=seed), GrayBox(), learns_alpha),
        Stage("gray-t", APGD(threat, climb=targeted_dlr, target_classes=TARGETS, seed=seed), GrayBox(), learns_alpha),
        fab,
        square,
        *transfers(threat, seed),
        precise,
    )
    return Cascade("adaptive", threat, stages)


def lowering_alpha(threat: Threat, weight: float, seed: int) -> tuple[Stage, Stage]:
    """APGD on cross-entropy and on targeted DLR, each with the term that pushes alpha down."""
    untargeted = APGD(threat, climb=LowerAlpha(cross_entropy_loss, weight), seed=seed)
    targeted = APGD(threat, climb=LowerAlpha(targeted_dlr_loss, weight), target_classes=TARGETS, seed=seed)
    return (
        Stage(f"apgd-ce-alpha-{weight:g}", untargeted, needs=learns_alpha),
        Stage(f"apgd-t-alpha-{weight:g}", targeted, needs=learns_alpha),
    )


def transfers(threat: Threat, seed: int) -> tuple[Stage, ...]:
    """Attacks on g, on h and on other mixtures; g falls at once, so cross-entropy is enough there."""
    plain = APGD(threat, climb=cross_entropy, seed=seed)
    targeted = APGD(threat, climb=targeted_margin, target_classes=3, seed=seed)
    others = (
        Stage(f"transfer-alpha-{alpha:g}", targeted, AtAlpha(alpha), mixes_probabilities) for alpha in OTHER_ALPHAS
    )
    return (
        Stage("transfer-g", plain, Base("standard"), mixes),
        Stage("transfer-h", targeted, Base("robust"), mixes),
        *others,
    )


def _pgd(
    name: str,
    view: Callable[[nn.Module], nn.Module] | None = None,
    needs: Callable[[nn.Module], bool] | None = None,
) -> Callable[..., Cascade]:
    """PGD-20 with the paper's step and no random start, on a view of the model."""

    def build(threat: Threat, *, seed: int = 0) -> Cascade:
        return Cascade(name, threat, (Stage("pgd-20", PGD(threat, steps=20, stop_when_fooled=False), view, needs),))

    return build


def MarginAttack(threat: Threat, *, seed: int = 0) -> Cascade:
    """The two APGD parts of AutoAttack, for the smallest lead of the right class they reach (the paper's appendix)."""
    apgd = (
        Stage("apgd-ce", APGD(threat, climb=cross_entropy, to_the_end=True, seed=seed)),
        Stage("apgd-t", APGD(threat, climb=targeted_dlr, target_classes=TARGETS, to_the_end=True, seed=seed)),
    )
    return Cascade("margin", threat, apgd)


def AdaptiveAutoAttack(threat: Threat, *, seed: int = 0) -> Cascade:
    """The paper's setting D: AutoAttack with the term that lowers alpha in both of its APGD parts."""
    ce, targeted, *others = AutoAttack(threat, seed=seed).stages
    unlearned = (replace(stage, needs=lacks_learned_alpha) for stage in (ce, targeted))
    return Cascade("D", threat, (*lowering_alpha(threat, 0.5, seed), *unlearned, *others))


PRESETS: dict[str, Callable[..., Cascade]] = {
    "fast": FastAttack,
    "standard": AutoAttack,
    "adaptive": AdaptiveAttack,
    "margin": MarginAttack,
    "A": _pgd("A", GrayBox()),
    "B": _pgd("B"),
    "C": AutoAttack,
    "D": AdaptiveAutoAttack,
    "STD": _pgd("STD", Base("standard"), mixes),
    "ROB": _pgd("ROB", Base("robust"), mixes),
    "MIX": _pgd("MIX"),
}


def preset(name: str, threat: Threat, *, seed: int = 0) -> Cascade:
    """A cascade by name."""
    if name not in PRESETS:
        raise ValueError(f"expected a preset among {', '.join(PRESETS)}, got {name!r}: see `evaluate --help`")
    return PRESETS[name](threat, seed=seed)
