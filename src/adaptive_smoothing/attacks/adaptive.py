"""The adaptive attack: AutoAttack and attacks designed for mixed classifiers.

- maximise the margin; flip g; assume the worst-case g; lower alpha with several weights;
- the same on surrogates: without Hardmax and clipping, without the transform of h, without the gradient of alpha;
- transfer attacks from g, from h and from mixtures with other alphas.

Attacks on a view of the model are checked on the model itself.
"""

from __future__ import annotations

from dataclasses import replace

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import TARGETS, auto_attack
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
    learns_alpha,
    learns_alpha_with_transformed_robust,
    mixes_probabilities,
)
from adaptive_smoothing.threat import Threat

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
