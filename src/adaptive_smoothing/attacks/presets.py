"""Attacks by name: `fast`, `standard`, `adaptive`, `margin`, and the paper's settings A to D, STD, ROB and MIX.

The keys of stages are stored in files and seed random numbers, so they never change. Titles are in `cascade.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from adaptive_smoothing.attacks import objectives, views
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.settings.user_code import from_packages, load_registered
from adaptive_smoothing.threat import Threat, check_threat

# The number of most likely incorrect classes that a targeted attack tries, as in the reference.
TARGETS = 9
# Weights of the term that lowers alpha. The paper's reference code uses the middle one, as do attacks on surrogates.
ALPHA_WEIGHTS = (0.1, 0.5, 0.9)
PAPER_WEIGHT = 0.5
# Alphas of the mixtures that attacks are transferred from.
OTHER_ALPHAS = (0.5, 0.9)

targeted_apgd = partial(APGD, target_classes=TARGETS)


def auto_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return AutoAttack: APGD on cross-entropy, then APGD on targeted DLR, FAB-T and Square.

    The budgets are the reference's: 100 steps, 9 x 100 steps, 9 x 100 steps and 5,000 queries. Images that survive by
    less than a rounding error are attacked again in full precision, which the reference always uses.

    Args:
        threat: the norm and the radius.
        seed: seed of the random numbers of all attacks.

    Examples:
        >>> ads.auto_attack(threat).stage_keys
        ('apgd-ce', 'apgd-t', 'fab-t', 'square', 'full-precision')
    """
    stages = (
        Stage("apgd-ce", APGD(threat, objective=objectives.cross_entropy, seed=seed)),
        Stage("apgd-t", targeted_apgd(threat, objective=objectives.targeted_dlr, seed=seed)),
        *fab_and_square(threat, seed),
        full_precision_stage(threat, seed),
    )
    return Cascade("standard", threat, stages)


def fast_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return short attacks: margin PGD, targeted PGD from diverse starts, APGD and FAB on the likeliest targets.

    On a mixed classifier, targeted PGD flips g first and then maximises the probability of the target. It also attacks
    h without its transform. FAB and Square audit a sample of the survivors.

    Args:
        threat: the norm and the radius.
        seed: seed of the random numbers of all attacks.

    Examples:
        >>> [stage.key for stage in ads.fast_attack(threat).audit]
        ['fab-t', 'square']
    """

    def diverse(objective: objectives.Objective, targets: int = TARGETS) -> DiversifiedPGD:
        return DiversifiedPGD(threat, steps=20, objective=objective, target_classes=targets, diversify=2, seed=seed)

    short_fab = FAB(threat, steps=30, target_classes=3, seed=seed)
    flip, worst_case = diverse(objectives.flip_standard, 4), diverse(objectives.worst_case_standard, 4)
    stages = (
        Stage("margin-pgd", DiversifiedPGD(threat, steps=16, objective=objectives.margin, seed=seed)),
        Stage("diverse-pgd", diverse(objectives.targeted_margin), needs=views.Lacks(views.mixes_probabilities)),
        Stage("turning-pgd", flip, needs=views.has_differentiable_standard),
        Stage("hostile-pgd", worst_case, needs=views.learns_alpha),
        Stage("smooth-hostile-pgd", worst_case, views.SmoothedSurrogate(), views.has_hardmax_or_learned_alpha),
        Stage("plain-turning-pgd", flip, views.WithoutTransforms(), views.has_transformed_robust),
        Stage("plain-hostile-pgd", worst_case, views.WithoutTransforms(), views.learns_alpha_with_transformed_robust),
        Stage("diverse-pgd-p", diverse(objectives.targeted_probability), needs=views.mixes_probabilities),
        Stage("apgd-t", APGD(threat, steps=50, objective=objectives.targeted_dlr, target_classes=2, seed=seed)),
        Stage("fab-short", short_fab, needs=views.Lacks(views.has_differentiable_standard)),
        full_precision_stage(threat, seed, steps=50),
    )
    return Cascade("fast", threat, stages, audit=fab_and_square(threat, seed))


def adaptive_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return AutoAttack with all attacks of this module; stages that do not apply to a model are left out.

    Attacks that use the model's own gradient come first: images that only FAB, Square or transfers fool are an alarm.

    Args:
        threat: the norm and the radius.
        seed: seed of the random numbers of all attacks.

    Examples:
        >>> cascade = ads.adaptive_attack(threat)
        >>> len(cascade.for_model(g).stages) < len(cascade.for_model(mixed).stages)  # g has no alpha to attack
        True
    """
    ce, targeted, fab, square, full_precision = auto_attack(threat, seed=seed).stages
    margin = targeted_apgd(threat, objective=objectives.targeted_margin, seed=seed)
    flip = targeted_apgd(threat, objective=objectives.flip_standard, seed=seed)
    flip_margin = targeted_apgd(threat, objective=objectives.flip_standard_margin, seed=seed)
    worst_case = targeted_apgd(threat, objective=objectives.worst_case_standard, seed=seed)
    lower_alpha = lower_alpha_stages(threat, PAPER_WEIGHT, seed)
    smooth, plain = views.SmoothedSurrogate(), views.WithoutTransforms()
    learned_and_transformed = views.learns_alpha_with_transformed_robust
    stages = (
        ce,
        targeted,
        Stage("apgd-margin-t", margin),
        Stage("turning-t", flip, needs=views.has_differentiable_standard),
        Stage("hostile-t", worst_case, needs=views.learns_alpha),
        *(stage for weight in ALPHA_WEIGHTS for stage in lower_alpha_stages(threat, weight, seed)),
        Stage("smooth-margin-t", margin, smooth, views.has_hardmax),
        Stage("smooth-turning-t", flip, smooth, views.has_hardmax),
        Stage("smooth-hostile-t", worst_case, smooth, views.has_hardmax_or_learned_alpha),
        Stage("plain-turning-t", flip, plain, views.has_transformed_robust),
        Stage("plain-hostile-t", worst_case, plain, learned_and_transformed),
        Stage("plain-h-t", flip_margin, views.WithoutTransforms(alpha=1.0), views.has_transformed_robust),
        *(Stage(f"plain-{stage.key}", stage.attack, plain, learned_and_transformed) for stage in lower_alpha),
        *(Stage(f"smooth-{stage.key}", stage.attack, smooth, views.learns_alpha) for stage in lower_alpha),
        Stage("gray-ce", ce.attack, views.GrayBox(), views.learns_alpha),
        Stage("gray-t", targeted.attack, views.GrayBox(), views.learns_alpha),
        fab,
        square,
        *transfer_stages(threat, seed),
        full_precision,
    )
    return Cascade("adaptive", threat, stages)


def margin_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return AutoAttack's two APGD attacks, run to their end for the widest margin of each image (paper's appendix)."""
    untargeted = APGD(threat, objective=objectives.cross_entropy, widest_margin=True, seed=seed)
    targeted = targeted_apgd(threat, objective=objectives.targeted_dlr, widest_margin=True, seed=seed)
    return Cascade("margin", threat, (Stage("apgd-ce", untargeted), Stage("apgd-t", targeted)))


def adaptive_auto_attack(threat: Threat, *, seed: int = 0) -> Cascade:
    """Return the paper's setting D: AutoAttack whose APGD attacks also lower alpha, if alpha is learned."""
    ce, targeted, *others = auto_attack(threat, seed=seed).stages
    without_alpha = (replace(stage, needs=views.Lacks(views.learns_alpha)) for stage in (ce, targeted))
    return Cascade("D", threat, (*lower_alpha_stages(threat, PAPER_WEIGHT, seed), *without_alpha, *others))


def pgd_20(
    name: str,
    threat: Threat,
    *,
    seed: int = 0,
    source: views.MakeView | None = None,
    needs: views.Predicate | None = None,
) -> Cascade:
    """Return PGD-20 with the paper's step size, on the model or on a view of it. Nothing is random, whatever `seed`."""
    return Cascade(name, threat, (Stage("pgd-20", PGD(threat, steps=20), source, needs),))


def fab_and_square(threat: Threat, seed: int) -> tuple[Stage, Stage]:
    """Return the two attacks of AutoAttack that do not maximise a loss."""
    return Stage("fab-t", FAB(threat, target_classes=TARGETS, seed=seed)), Stage("square", Square(threat, seed=seed))


def full_precision_stage(threat: Threat, seed: int, *, steps: int = 100) -> Stage:
    """Return APGD on the margin in full precision, from the worst iterate that earlier attacks have found."""
    again = APGD(threat, steps=steps, objective=objectives.margin, first_step=0.25, from_worst=True, seed=seed)
    return Stage("full-precision", again, precise=True)


def lower_alpha_stages(threat: Threat, weight: float, seed: int) -> tuple[Stage, Stage]:
    """Return APGD on cross-entropy and on targeted DLR, each with the term that lowers alpha."""
    untargeted = APGD(threat, objective=objectives.LowerAlpha(objectives.cross_entropy_loss, weight), seed=seed)
    targeted = targeted_apgd(threat, objective=objectives.LowerAlpha(objectives.targeted_dlr_loss, weight), seed=seed)
    return (
        Stage(f"apgd-ce-alpha-{weight:g}", untargeted, needs=views.learns_alpha),
        Stage(f"apgd-t-alpha-{weight:g}", targeted, needs=views.learns_alpha),
    )


def transfer_stages(threat: Threat, seed: int) -> tuple[Stage, ...]:
    """Return attacks on g, on h and on other mixtures; g is fooled easily, so cross-entropy is enough there."""
    untargeted = APGD(threat, objective=objectives.cross_entropy, seed=seed)
    targeted = APGD(threat, objective=objectives.targeted_margin, target_classes=3, seed=seed)
    return (
        Stage("transfer-g", untargeted, views.Base("standard"), views.is_mixture),
        Stage("transfer-h", targeted, views.Base("robust"), views.is_mixture),
        *(
            Stage(f"transfer-alpha-{alpha:g}", targeted, views.AtAlpha(alpha), views.mixes_probabilities)
            for alpha in OTHER_ALPHAS
        ),
    )


MakePreset = Callable[..., Cascade]

PRESETS: dict[str, MakePreset] = {
    "fast": fast_attack,
    "standard": auto_attack,
    "adaptive": adaptive_attack,
    "margin": margin_attack,
    "A": partial(pgd_20, "A", source=views.GrayBox()),
    "B": partial(pgd_20, "B"),
    "C": auto_attack,
    "D": adaptive_auto_attack,
    "STD": partial(pgd_20, "STD", source=views.Base("standard"), needs=views.is_mixture),
    "ROB": partial(pgd_20, "ROB", source=views.Base("robust"), needs=views.is_mixture),
    "MIX": partial(pgd_20, "MIX"),
}


def preset(name: str, threat: Threat, *, seed: int = 0) -> Cascade:
    """Return the cascade of that name.

    Args:
        name: fast, standard, adaptive, margin, A, B, C, D, STD, ROB or MIX (see docs/attacks.md), or a name that
            another package registers.
        threat: the norm and the radius.
        seed: seed of the random numbers of all attacks.

    Examples:
        >>> ads.preset("B", ads.L2(0.5)).name
        'B'
    """
    make = find_preset(name)
    check_threat(threat)
    return make(threat, seed=seed)


def find_preset(name: str) -> MakePreset:
    """Return the function that makes a preset: one of `PRESETS`, or one that another package registers."""
    if name in PRESETS:
        return PRESETS[name]
    others = from_packages("attacks")
    check_choice("preset", name, {**PRESETS, **others})
    return as_preset(name, load_registered(others[name]))


def user_function(name: str) -> str | None:
    """Return the `module:function` of an attack of the user or of another package; None for a preset of this one."""
    if ":" in name:
        return name
    point = None if name in PRESETS else from_packages("attacks").get(name)
    return None if point is None else f"{point.module}:{point.attr}"


def as_preset(name: str, function: Callable[..., Any]) -> MakePreset:
    """Return a function from a threat and a seed to a cascade, made of a function of the user.

    Args:
        name: the name of the cascade, and of its stage.
        function: `attack(model, images, labels) -> images`. If its first parameter is called `threat`, it is a preset:
            `make(threat, seed=0)` returns a `Cascade` for that threat, or an attack.
    """

    def make(threat: Threat, *, seed: int = 0) -> Cascade:
        accepted = _parameters(function)
        if accepted[:1] != ["threat"]:
            return Cascade(name, threat, (Stage(name, function),))
        made = function(threat, seed=seed) if "seed" in accepted else function(threat)
        made = made if isinstance(made, Cascade) else Cascade(name, threat, (Stage(name, made),))
        if made.threat != threat:
            raise ValueError(f"expected a cascade for {threat} from {name}, got one for {made.threat}: use its threat")
        return made

    return make


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a function; none if Python does not know them."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions that are written in C
        return []
