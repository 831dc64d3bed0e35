"""Attacks one after the other, each on what the ones before have left standing: the worst case of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput, AttackOutcome
from adaptive_smoothing.attacks.engine.engine import Engine, View
from adaptive_smoothing.attacks.engine.jobs import Watch
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack
from adaptive_smoothing.attacks.success import confirm
from adaptive_smoothing.threat import Threat

# What attack libraries have: an attack on a model's images and labels that returns other images.
PlainAttack = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stage:
    """An attack with a name; `source` says on which view of the model it is made, when not on the model itself.

    `needs` says which models it is for. A `precise` one is for the images that stand by so little that the rounding
    errors of fast arithmetic may be why.
    """

    key: str
    attack: StepAttack | PlainAttack
    source: View | None = None
    needs: Callable[[nn.Module], bool] | None = None
    precise: bool = False

    @property
    def to_the_end(self) -> bool:
        return isinstance(self.attack, StepAttack) and self.attack.to_the_end

    @property
    def cost(self) -> float:
        """Roughly, in forward passes an image that stands: for estimates of the time left."""
        if self.precise:  # of a few images only
            return 1.0
        if not isinstance(self.attack, StepAttack):
            return 3.0 * getattr(self.attack, "steps", 20)
        attempts = max(1, getattr(self.attack, "target_classes", 1)) * getattr(self.attack, "restarts", 1)
        return attempts * self.attack.evaluations * (1 if isinstance(self.attack, Square) else 3)


@dataclass(frozen=True)
class Cascade:
    """Stages in order. `audit` is run in full on a sample of what is left, to see what the stages may have missed."""

    name: str
    threat: Threat
    stages: tuple[Stage, ...]
    audit: tuple[Stage, ...] = ()
    audit_random: int = 48
    audit_closest: int = 16
    # Of fewer survivors at most this share, so that the audit never costs more than what it audits.
    audit_share: float = 1 / 8

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise TypeError(f"expected a threat such as ads.Linf(8 / 255), got {self.threat!r}: name the norm as well")

    def for_model(self, model: nn.Module) -> Cascade:
        """Without the stages that make no sense for this model."""
        stages = tuple(stage for stage in self.stages if stage.needs is None or stage.needs(model))
        if not stages:
            raise ValueError(
                f"expected a model that {self.name} has an attack for, got a {type(model).__name__}: its attacks are "
                "on parts of other mixtures; mix two models (G H --alpha), or choose a preset such as standard"
            )
        return replace(self, stages=stages)

    def audit_sizes(self, survivors: int) -> tuple[int, int]:
        """How many survivors to audit: some at random, and a third as many of those closest to falling."""
        share = self.audit_share * survivors
        return min(self.audit_random, round(0.75 * share)), min(self.audit_closest, round(0.25 * share))

    @property
    def stage_keys(self) -> tuple[str, ...]:
        return tuple(stage.key for stage in (*self.stages, *self.audit))


@dataclass
class CascadeState:
    """What is known of each image so far: which stage fooled it (-1: none), and the rest as in an `Outcome`."""

    fooled_by: Tensor
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor

    @classmethod
    def before(cls, shot: AttackInput) -> CascadeState:
        start = AttackOutcome.before(shot)
        return cls(torch.full_like(shot.labels, -1), start.worst, start.margin, start.logits, start.queries)

    def left(self) -> Tensor:
        return (self.fooled_by < 0).nonzero().squeeze(1)

    def add(self, number: int, which: Tensor, outcome: AttackOutcome) -> None:
        fell = outcome.fooled & (self.fooled_by[which] < 0)
        closer = fell | (outcome.margin > self.margin[which])
        for mine, theirs in ((self.worst, outcome.worst), (self.margin, outcome.margin), (self.logits, outcome.logits)):
            mine[which[closer]] = theirs[closer]
        self.fooled_by[which[fell]] = number
        self.queries[which] += outcome.queries


def run_stage(
    engine: Engine, number: int, stage: Stage, shot: AttackInput, standing: CascadeState, watch: Watch | None = None
) -> None:
    """Attack what the stage is for, and note what became of it."""
    which = _for_stage(engine, stage, shot, standing)
    if not len(which):
        return
    if watch is not None:
        watch = partial(_told_of_new, watch, int((standing.fooled_by[which] >= 0).sum()))
    part = replace(shot, worst=standing.worst).take(which)
    if isinstance(stage.attack, StepAttack):
        outcome = engine.run(stage.key, stage.attack, part, source=stage.source, precise=stage.precise, watch=watch)
    else:
        attack = stage.attack
        outcome = engine.retried(part, stage.source, lambda view: plain_outcome(engine, attack, part, view))
    standing.add(number, which, outcome)


def _for_stage(engine: Engine, stage: Stage, shot: AttackInput, standing: CascadeState) -> Tensor:
    """What stands, or only what stands by a rounding error; everything for an attack that goes to the end."""
    left = standing.left()
    if stage.precise:
        return left[standing.margin[left] > -engine.arithmetic(shot).rounding(shot.logits[left])]
    return torch.arange(len(shot), device=left.device) if stage.to_the_end else left


def _told_of_new(watch: Watch, before: int, share: float, fallen: int) -> None:
    """Of images that have fallen, without those that an attack to the end was given as such."""
    watch(share, max(0, fallen - before))


def plain_outcome(engine: Engine, attack: PlainAttack, shot: AttackInput, source: nn.Module | None) -> AttackOutcome:
    """An attack that is no engine's: called batch by batch, judged like any other."""
    attacked = source or engine.model
    worst, queries = [], torch.zeros_like(shot.labels)
    for rows in torch.arange(len(shot), device=shot.labels.device).split(engine.size):
        part = shot.take(rows)
        with _counted(attacked) as calls:
            worst.append(_for(attack, part)(attacked, part.images, part.labels))
        queries[rows] = len(calls)
        engine.passes.add(sum(calls), gradient=True)
    margin, logits = confirm(engine.model, torch.cat(worst), shot.images, shot.labels, shot.threat)
    _warn_if_outside(torch.cat(worst), shot, margin)
    return AttackOutcome(margin > 0, torch.cat(worst), margin, logits, queries)


def _warn_if_outside(worst: Tensor, shot: AttackInput, margin: Tensor) -> None:
    """It looks like robustness, and is an attack with another radius than that of the evaluation."""
    outside = margin.isneginf()
    if outside.any():
        farthest = shot.threat.distance(worst, shot.images)[outside].max().item()
        warnings.warn(
            f"an attack left the {shot.threat.norm} ball on {int(outside.sum())} of {len(shot)} images, and went as "
            f"far as {farthest:.4g}: they count as not fooled; give the attack the eps of the evaluation",
            stacklevel=2,
        )


@contextmanager
def _counted(model: nn.Module) -> Iterator[list[int]]:
    """How many images each call of the model was about."""
    calls: list[int] = []
    handle = model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    try:
        yield calls
    finally:
        handle.remove()


def _for(attack: PlainAttack, shot: AttackInput) -> PlainAttack:
    """PGD with the radii of these images."""
    return replace(attack, threat=attack.threat.with_eps(shot.threat.eps)) if isinstance(attack, PGD) else attack
