"""Attacks one after the other, each on what the ones before have left standing: the worst case of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine import Engine, Outcome, Shot, Watch
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.steps import StepAttack
from adaptive_smoothing.attacks.verdict import verdict
from adaptive_smoothing.threat import Threat

# What attack libraries have: an attack on a model's images and labels that returns other images.
PlainAttack = Callable[[nn.Module, Tensor, Tensor], Tensor]
View = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Stage:
    """An attack with a name; `source` says on which view of the model it is made, when not on the model itself."""

    name: str
    attack: StepAttack | PlainAttack
    source: View | None = None

    @property
    def cost(self) -> float:
        """Roughly, in forward passes an image that stands: for estimates of the time left."""
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

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in (*self.stages, *self.audit))


@dataclass
class Standing:
    """What is known of each image so far: which stage fooled it (-1: none), its worst version, margin and queries."""

    fooled_by: Tensor
    worst: Tensor
    margin: Tensor
    queries: Tensor = field(repr=False)

    @classmethod
    def before(cls, shot: Shot) -> Standing:
        nobody = torch.full_like(shot.labels, -1)
        low = torch.full(shot.labels.shape, -torch.inf, device=shot.images.device)
        return cls(nobody, shot.images.clone(), low, torch.zeros_like(shot.labels))

    def left(self) -> Tensor:
        return (self.fooled_by < 0).nonzero().squeeze(1)

    def add(self, number: int, which: Tensor, outcome: Outcome) -> None:
        closer = outcome.fooled | (outcome.margin > self.margin[which])
        self.worst[which[closer]] = outcome.worst[closer]
        self.margin[which[closer]] = outcome.margin[closer]
        self.fooled_by[which[outcome.fooled]] = number
        self.queries[which] += outcome.queries


def run_stage(
    engine: Engine, number: int, stage: Stage, shot: Shot, standing: Standing, watch: Watch | None = None
) -> None:
    """Attack what stands, and note what became of it."""
    which = standing.left()
    if not len(which):
        return
    source = None if stage.source is None else stage.source(engine.model)
    part = shot.take(which)
    if isinstance(stage.attack, StepAttack):
        outcome = engine.run(stage.name, stage.attack, part, source=source, watch=watch)
    else:
        outcome = plain_outcome(engine, stage.attack, part, source)
    standing.add(number, which, outcome)


def plain_outcome(engine: Engine, attack: PlainAttack, shot: Shot, source: nn.Module | None) -> Outcome:
    """An attack that is no engine's: called batch by batch, judged like any other."""
    parts = [shot.take(rows) for rows in torch.arange(len(shot), device=shot.labels.device).split(engine.size)]
    worst = torch.cat([attack(source or engine.model, part.images, part.labels) for part in parts])
    margin, _ = verdict(engine.model, worst, shot.images, shot.labels, shot.threat)
    return Outcome(margin > 0, worst, margin, torch.zeros_like(shot.labels))
