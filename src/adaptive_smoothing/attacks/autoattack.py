"""AutoAttack (Croce and Hein 2020) with the reference's budgets, and a cascade that reaches its verdicts with less."""

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
    Plain,
    Smooth,
    has_differentiable_standard,
    has_flat_part,
    has_steep_part,
    lacks_differentiable_standard,
    learns_alpha,
    learns_beside_a_steep_part,
    mixes_no_probabilities,
    mixes_probabilities,
)
from adaptive_smoothing.threat import Threat

TARGETS = 9


def AutoAttack(threat: Threat, *, seed: int = 0) -> Cascade:
    """APGD on cross-entropy, 100 steps; APGD on the targeted DLR loss, 9 x 100; FAB, 9 x 100; Square, 5,000 queries.

    What stands by no more than a rounding error is then attacked again in full precision, as the reference works.
    """
    stages = (
        Stage("apgd-ce", APGD(threat, climb=cross_entropy, seed=seed)),
        Stage("apgd-t", APGD(threat, climb=targeted_dlr, target_classes=TARGETS, seed=seed)),
        *boundary_and_square(threat, seed),
        in_full_precision(threat, seed),
    )
    return Cascade("standard", threat, stages)


def FastAttack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Short attacks on the margin, targeted ones from diverse starts, APGD and FAB on the likeliest targets; an audit.

    On a mixed classifier those from diverse starts climb the lead in probability, after others that turn g first,
    which take what FAB would. A transform of h is looked past as well.
    """

    def diverse(climb: Objective, targets: int = TARGETS) -> DiversifiedPGD:
        return DiversifiedPGD(threat, steps=20, climb=climb, target_classes=targets, diversify=2, seed=seed)

    stages = (
        Stage("margin-pgd", DiversifiedPGD(threat, steps=16, climb=margin, seed=seed)),
        Stage("diverse-pgd", diverse(targeted_margin), needs=mixes_no_probabilities),
        Stage("turning-pgd", diverse(flip_standard, 4), needs=has_differentiable_standard),
        Stage("hostile-pgd", diverse(worst_case_standard, 4), needs=learns_alpha),
        Stage("smooth-hostile-pgd", diverse(worst_case_standard, 4), Smooth(), has_flat_part),
        Stage("plain-turning-pgd", diverse(flip_standard, 4), Plain(), has_steep_part),
        Stage("plain-hostile-pgd", diverse(worst_case_standard, 4), Plain(), learns_beside_a_steep_part),
        Stage("diverse-pgd-p", diverse(targeted_probability), needs=mixes_probabilities),
        Stage("apgd-t", APGD(threat, steps=50, climb=targeted_dlr, target_classes=2, seed=seed)),
        Stage("fab-short", FAB(threat, steps=30, target_classes=3, seed=seed), needs=lacks_differentiable_standard),
        in_full_precision(threat, seed, steps=50),
    )
    return Cascade("fast", threat, stages, audit=boundary_and_square(threat, seed))


def boundary_and_square(threat: Threat, seed: int) -> tuple[Stage, ...]:
    return Stage("fab-t", FAB(threat, target_classes=TARGETS, seed=seed)), Stage("square", Square(threat, seed=seed))


def in_full_precision(threat: Threat, seed: int, *, steps: int = 100) -> Stage:
    """From the worst version so far, towards whichever class is closest there."""
    again = APGD(threat, steps=steps, climb=margin, first_step=0.25, go_on=True, seed=seed)
    return Stage("full-precision", again, precise=True)
