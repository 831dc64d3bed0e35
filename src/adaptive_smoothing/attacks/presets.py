"""Attacks by name: `fast`, `standard`, `adaptive`, `margin`, and the paper's settings A to D, STD, ROB and MIX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from adaptive_smoothing.attacks.adaptive import adaptive_attack, lower_alpha_stages
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import TARGETS, auto_attack, fast_attack
from adaptive_smoothing.attacks.cascade import Cascade, Needs, Stage
from adaptive_smoothing.attacks.engine.engine import View
from adaptive_smoothing.attacks.objectives import cross_entropy, targeted_dlr
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.views import Base, GrayBox, is_mixture, lacks_learned_alpha
from adaptive_smoothing.threat import Threat


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
