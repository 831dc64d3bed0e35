"""AutoAttack (Croce and Hein 2020) with the reference's budgets, and a faster cascade that fools as many images."""

from __future__ import annotations

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import (
    Objective,
    cross_entropy,
    flip_standard,
    margin,
    targeted_dlr,
    targeted_margin,
    targeted_probability,
    worst_case_standard,
)
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.views import (
    SmoothedSurrogate,
    WithoutTransforms,
    has_differentiable_standard,
    has_hardmax_or_learned_alpha,
    has_transformed_robust,
    lacks_differentiable_standard,
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
