"""Attacks by name: `fast`, `standard`, `adaptive`, `margin`, and the paper's settings A to D, STD, ROB and MIX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, Needs, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.engine.engine import View
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import (
    LowerAlpha,
    Objective,
    cross_entropy,
    cross_entropy_loss,
    flip_standard,
    flip_standard_margin,
    margin,
    targeted_dlr,
    targeted_dlr_loss,
    targeted_margin,
    targeted_probability,
    worst_case_standard,
)
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.views import (
    AtAlpha,
    Base,
    GrayBox,
    SmoothedSurrogate,
    WithoutTransforms,
    has_differentiable_standard,
    has_hardmax,
    has_hardmax_or_learned_alpha,
    has_transformed_robust,
    is_mixture,
    lacks_differentiable_standard,
    lacks_learned_alpha,
    learns_alpha,
    learns_alpha_with_transformed_robust,
    mixes_no_probabilities,
    mixes_probabilities,
)
from adaptive_smoothing.threat import Threat

TARGETS = 9


def auto_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return APGD on cross-entropy, 100 steps; APGD on targeted DLR, 9 x 100; FAB, 9 x 100; Square, 5,000 queries.

    Images that survive by less than a rounding error are attacked again in full precision, which the reference uses.
    """
    stages = (
        Stage("apgd-ce", APGD(threat, objective=cross_entropy, seed=seed)),
        Stage("apgd-t", APGD(threat, objective=targeted_dlr, target_classes=TARGETS, seed=seed)),
        *fab_and_square(threat, seed),
        full_precision_stage(threat, seed),
    )
    return Cascade("standard", threat, stages)


def fast_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return short attacks: margin PGD, targeted PGD from diverse starts, APGD and FAB on the likeliest targets.

    On a mixed classifier, targeted PGD flips g first and then maximises the probability of the target. It also attacks
    h without its transform. FAB and Square audit a sample of the survivors.
    """

    def diverse(objective: Objective, targets: int = TARGETS) -> DiversifiedPGD:
        return DiversifiedPGD(threat, steps=20, objective=objective, target_classes=targets, diversify=2, seed=seed)

    flip, worst_case = diverse(flip_standard, 4), diverse(worst_case_standard, 4)
    stages = (
        Stage("margin-pgd", DiversifiedPGD(threat, steps=16, objective=margin, seed=seed)),
        Stage("diverse-pgd", diverse(targeted_margin), needs=mixes_no_probabilities),
        Stage("turning-pgd", flip, needs=has_differentiable_standard),
        Stage("hostile-pgd", worst_case, needs=learns_alpha),
        Stage("smooth-hostile-pgd", worst_case, SmoothedSurrogate(), has_hardmax_or_learned_alpha),
        Stage("plain-turning-pgd", flip, WithoutTransforms(), has_transformed_robust),
        Stage("plain-hostile-pgd", worst_case, WithoutTransforms(), learns_alpha_with_transformed_robust),
        Stage("diverse-pgd-p", diverse(targeted_probability), needs=mixes_probabilities),
        Stage("apgd-t", APGD(threat, steps=50, objective=targeted_dlr, target_classes=2, seed=seed)),
        Stage("fab-short", FAB(threat, steps=30, target_classes=3, seed=seed), needs=lacks_differentiable_standard),
        full_precision_stage(threat, seed, steps=50),
    )
    return Cascade("fast", threat, stages, audit=fab_and_square(threat, seed))


def fab_and_square(threat: Threat, seed: int) -> tuple[Stage, Stage]:
    """Return the two attacks of AutoAttack that do not maximise a loss."""
    return Stage("fab-t", FAB(threat, target_classes=TARGETS, seed=seed)), Stage("square", Square(threat, seed=seed))


def full_precision_stage(threat: Threat, seed: int, *, steps: int = 100) -> Stage:
    """Return APGD on the margin in full precision, from the worst iterate that earlier attacks have found."""
    again = APGD(threat, steps=steps, objective=margin, first_step=0.25, from_worst=True, seed=seed)
    return Stage("full-precision", again, precise=True)


# Weights of the term that lowers alpha. The paper's reference code evaluates with the middle one, which is also used
# on the surrogates.
ALPHA_WEIGHTS = (0.1, 0.5, 0.9)
SURROGATE_WEIGHT = 0.5
# Alphas of the mixtures that attacks are transferred from.
OTHER_ALPHAS = (0.5, 0.9)


def adaptive_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return AutoAttack with all attacks of this module; stages that do not apply to a model are left out.

    Attacks that use the model's own gradient come first: images that only FAB, Square or transfers fool are an alarm.
    """
    ce, targeted, fab, square, full_precision = auto_attack(threat, seed=seed).stages
    margin, flip, worst_case, flip_margin = (
        APGD(threat, objective=objective, target_classes=TARGETS, seed=seed)
        for objective in (targeted_margin, flip_standard, worst_case_standard, flip_standard_margin)
    )
    smooth, plain, gray_box = SmoothedSurrogate(), WithoutTransforms(), GrayBox()
    stages = (
        ce,
        targeted,
        Stage("apgd-margin-t", margin),
        Stage("turning-t", flip, needs=has_differentiable_standard),
        Stage("hostile-t", worst_case, needs=learns_alpha),
        *(stage for weight in ALPHA_WEIGHTS for stage in lower_alpha_stages(threat, weight, seed)),
        Stage("smooth-margin-t", margin, smooth, has_hardmax),
        Stage("smooth-turning-t", flip, smooth, has_hardmax),
        Stage("smooth-hostile-t", worst_case, smooth, has_hardmax_or_learned_alpha),
        Stage("plain-turning-t", flip, plain, has_transformed_robust),
        Stage("plain-hostile-t", worst_case, plain, learns_alpha_with_transformed_robust),
        Stage("plain-h-t", flip_margin, WithoutTransforms(alpha=1.0), has_transformed_robust),
        *(
            replace(stage, key=f"plain-{stage.key}", source=plain, needs=learns_alpha_with_transformed_robust)
            for stage in lower_alpha_stages(threat, SURROGATE_WEIGHT, seed)
        ),
        *(
            replace(stage, key=f"smooth-{stage.key}", source=smooth)
            for stage in lower_alpha_stages(threat, SURROGATE_WEIGHT, seed)
        ),
        Stage("gray-ce", APGD(threat, objective=cross_entropy, seed=seed), gray_box, learns_alpha),
        Stage(
            "gray-t",
            APGD(threat, objective=targeted_dlr, target_classes=TARGETS, seed=seed),
            gray_box,
            learns_alpha,
        ),
        fab,
        square,
        *transfer_stages(threat, seed),
        full_precision,
    )
    return Cascade("adaptive", threat, stages)


def lower_alpha_stages(threat: Threat, weight: float, seed: int) -> tuple[Stage, Stage]:
    """Return APGD on cross-entropy and on targeted DLR, each with the term that lowers alpha."""
    untargeted = APGD(threat, objective=LowerAlpha(cross_entropy_loss, weight), seed=seed)
    targeted = APGD(threat, objective=LowerAlpha(targeted_dlr_loss, weight), target_classes=TARGETS, seed=seed)
    return (
        Stage(f"apgd-ce-alpha-{weight:g}", untargeted, needs=learns_alpha),
        Stage(f"apgd-t-alpha-{weight:g}", targeted, needs=learns_alpha),
    )


def transfer_stages(threat: Threat, seed: int) -> tuple[Stage, ...]:
    """Return attacks on g, on h and on other mixtures; g is fooled easily, so cross-entropy is enough there."""
    untargeted = APGD(threat, objective=cross_entropy, seed=seed)
    targeted = APGD(threat, objective=targeted_margin, target_classes=3, seed=seed)
    return (
        Stage("transfer-g", untargeted, Base("standard"), is_mixture),
        Stage("transfer-h", targeted, Base("robust"), is_mixture),
        *(Stage(f"transfer-alpha-{alpha:g}", targeted, AtAlpha(alpha), mixes_probabilities) for alpha in OTHER_ALPHAS),
    )


class Preset(Protocol):
    """Builds a cascade for a threat."""

    def __call__(self, threat: Threat, *, seed: int = 0) -> Cascade: ...


@dataclass(frozen=True)
class PGD20:
    """PGD-20 with the paper's step and no random start, on the model or on a view of it."""

    name: str
    source: View | None = None
    needs: Needs | None = None

    def __call__(self, threat: Threat, *, seed: int = 0) -> Cascade:
        return Cascade(self.name, threat, (Stage("pgd-20", PGD(threat, steps=20), self.source, self.needs),))


def margin_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return AutoAttack's two APGD attacks, run for the smallest margin of each image (the paper's appendix)."""
    untargeted = APGD(threat, objective=cross_entropy, widest_margin=True, seed=seed)
    targeted = APGD(threat, objective=targeted_dlr, target_classes=TARGETS, widest_margin=True, seed=seed)
    return Cascade("margin", threat, (Stage("apgd-ce", untargeted), Stage("apgd-t", targeted)))


def adaptive_auto_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return the paper's setting D: AutoAttack whose APGD attacks also lower alpha."""
    ce, targeted, *others = auto_attack(threat, seed=seed).stages
    without_alpha = (replace(stage, needs=lacks_learned_alpha) for stage in (ce, targeted))
    return Cascade("D", threat, (*lower_alpha_stages(threat, 0.5, seed), *without_alpha, *others))


PRESETS: dict[str, Preset] = {
    "fast": fast_attack,
    "standard": auto_attack,
    "adaptive": adaptive_attack,
    "margin": margin_attack,
    "A": PGD20("A", GrayBox()),
    "B": PGD20("B"),
    "C": auto_attack,
    "D": adaptive_auto_attack,
    "STD": PGD20("STD", Base("standard"), is_mixture),
    "ROB": PGD20("ROB", Base("robust"), is_mixture),
    "MIX": PGD20("MIX"),
}


def preset(name: str, threat: Threat, *, seed: int = 0) -> Cascade:
    """Return the cascade of that name."""
    if name not in PRESETS:
        raise ValueError(f"expected a preset among {', '.join(PRESETS)}, got {name!r}: see `evaluate --help`")
    return PRESETS[name](threat, seed=seed)
