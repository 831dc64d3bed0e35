"""A cascade: stages one after the other, each an attack on the images that have survived so far.

The result is the worst case over all stages. A survivor is an image that no stage has fooled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import (
    OUTSIDE_HINT,
    AttackInput,
    AttackOutcome,
    check_returned,
    check_share_outside,
    confirm,
    describe_outside,
    inside_threat,
)
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import AttackProgress, run_attack
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack
from adaptive_smoothing.attacks.views import MakeView, Predicate
from adaptive_smoothing.models.contract import check_eval
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.settings.checks import warn_user
from adaptive_smoothing.threat import Threat, check_threat, column

# The interface of attack libraries: attack(model, images, labels) returns adversarial images.
PlainAttack = Callable[[nn.Module, Tensor, Tensor], Tensor]
BatchType = TypeVar("BatchType")

# Titles of stages by key; g is the standard classifier, h the robust one. A prefix of VIEWS may precede the key.
TITLES = {
    "apgd-ce": "APGD, cross-entropy",
    "apgd-t": "APGD, targeted DLR",
    "apgd-margin-t": "APGD, targeted margin",
    "fab-t": "FAB, targeted",
    "fab-short": "FAB, targeted, short",
    "square": "Square",
    "full-precision": "APGD, margin, in full precision",
    "pgd-20": "PGD-20",
    "margin-pgd": "PGD, margin",
    "diverse-pgd": "diversified PGD, targeted margin",
    "diverse-pgd-p": "diversified PGD, targeted probability",
    "turning-pgd": "diversified PGD, flip g",
    "hostile-pgd": "diversified PGD, worst-case g",
    "turning-t": "APGD, flip g",
    "hostile-t": "APGD, worst-case g",
    "margin-t": "APGD, targeted margin",
    "h-t": "APGD on h alone, flip g",
    "gray-ce": "APGD, cross-entropy, gray-box",
    "gray-t": "APGD, targeted DLR, gray-box",
    "transfer-g": "transfer from g",
    "transfer-h": "transfer from h",
}
VIEWS = {"smooth-": "smoothed surrogate", "plain-": "without transforms"}


def stage_title(key: str) -> str:
    """Return the title of an attack stage; an unknown key is its own title."""
    for prefix, view in VIEWS.items():
        if key.startswith(prefix):
            return f"{stage_title(key.removeprefix(prefix))} ({view})"
    if found := re.fullmatch(r"apgd-(ce|t)-alpha-([\d.]+)", key):
        return f"{TITLES[f'apgd-{found[1]}']}, lower alpha, weight {found[2]}"
    if found := re.fullmatch(r"transfer-alpha-([\d.]+)", key):
        return f"transfer from alpha = {found[1]}"
    return TITLES.get(key, key)


@dataclass(frozen=True)
class Stage:
    """One attack of a cascade."""

    key: str  # names the stage in result files, and seeds its random numbers
    attack: StepAttack | PlainAttack
    source: MakeView | None = None  # makes the view of the model that gradients come from; None: the model itself
    needs: Predicate | None = None  # whether the stage applies to a model; None: it always does
    precise: bool = False  # attack in full precision, and only images that survive by less than the rounding error

    @property
    def widest_margin(self) -> bool:
        """Whether the attack also runs on fooled images, to find their widest margin."""
        return isinstance(self.attack, StepAttack) and self.attack.widest_margin

    @property
    def cost(self) -> float:
        """The approximate number of forward passes per survivor, from which the time left is estimated."""
        if self.precise:  # few images
            return 1.0
        if not isinstance(self.attack, StepAttack):
            return 3.0 * getattr(self.attack, "steps", 20)
        attempts = max(1, self.attack.target_classes) * self.attack.restarts
        return attempts * self.attack.evaluations * (1 if isinstance(self.attack, Square) else 3)


@dataclass(frozen=True)
class Cascade:
    """Stages in order, and the stages of an audit.

    The audit attacks a sample of the survivors, to estimate how many the stages have missed.
    """

    name: str
    threat: Threat
    stages: tuple[Stage, ...]
    audit: tuple[Stage, ...] = ()
    audit_random: int = 48  # survivors drawn at random
    audit_closest: int = 16  # survivors that are closest to being fooled
    audit_share: float = 1 / 8  # the largest share of the survivors to audit, so that a short run has a short audit

    def __post_init__(self) -> None:
        check_threat(self.threat)
        for stage in self.stages:
            if not isinstance(stage.attack, StepAttack) and (
                isinstance(stage.attack, type) or not callable(stage.attack)
            ):
                hint = "give the stage a function attack(model, images, labels) -> images"
                raise TypeError(f"expected an attack in the stage {stage.key!r}, got {stage.attack!r}: {hint}")

    def for_model(self, model: nn.Module) -> Cascade:
        """Return the cascade with the stages that apply to a model."""
        stages = tuple(stage for stage in self.stages if stage.needs is None or stage.needs(model))
        if not stages:
            found = f"a {type(model).__name__}, to which none of its stages applies"
            hint = "mix two models (G H --alpha), or choose a preset such as standard"
            raise ValueError(f"expected a model that {self.name} has an attack for, got {found}: {hint}")
        return replace(self, stages=stages)

    def audit_sizes(self, survivors: int) -> tuple[int, int]:
        """Return how many survivors to audit at random, and how many of those that are closest to being fooled."""
        share = self.audit_share * survivors
        return min(self.audit_random, round(0.75 * share)), min(self.audit_closest, round(0.25 * share))

    @property
    def stage_keys(self) -> tuple[str, ...]:
        """The keys of all stages, followed by those of the audit."""
        return tuple(stage.key for stage in (*self.stages, *self.audit))

    @property
    def has_user_function(self) -> bool:
        """Whether a stage, also one of the audit, is a user's attack function."""
        return any(is_user_function(stage.attack) for stage in (*self.stages, *self.audit))


@dataclass
class CascadeState:
    """The result so far for each image: the stage that fooled it, and fields of `AttackOutcome`."""

    fooled_by: Tensor  # the number of a stage; -1: none
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor
    outside: Tensor  # whether an attack returned an image outside the threat model

    @classmethod
    def before(cls, inputs: AttackInput) -> CascadeState:
        """Return the state before the first stage."""
        start = AttackOutcome.before(inputs)
        none_fooled, none_outside = torch.full_like(inputs.labels, -1), torch.zeros_like(start.fooled)
        return cls(none_fooled, start.worst, start.margin, start.logits, start.queries, none_outside)

    def left(self) -> Tensor:
        """Return the positions of the survivors."""
        return (self.fooled_by < 0).nonzero().squeeze(1)

    def add(self, number: int, which: Tensor, outcome: AttackOutcome) -> None:
        """Add the outcome of stage `number` on a selection of the images."""
        newly_fooled = outcome.fooled & (self.fooled_by[which] < 0)
        replaced = newly_fooled | (outcome.margin > self.margin[which])
        at = which[replaced]
        self.worst[at] = outcome.worst[replaced]
        self.margin[at] = outcome.margin[replaced]
        self.logits[at] = outcome.logits[replaced]
        self.fooled_by[which[newly_fooled]] = number
        self.queries[which] += outcome.queries


def run_stage(
    engine: Engine,
    number: int,
    stage: Stage,
    inputs: AttackInput,
    state: CascadeState,
    progress: AttackProgress | None = None,
) -> None:
    """Run a stage on the survivors and add its outcome to `state`.

    A `precise` stage attacks only near misses, and a stage for the widest margin attacks all images.
    """
    which = state.left()
    if stage.precise:
        which = which[state.margin[which] > -engine.arithmetic(inputs).rounding(inputs.logits[which])]
    elif stage.widest_margin:
        which = torch.arange(len(inputs), device=which.device)
    if not len(which):
        return
    attack, part = stage.attack, replace(inputs, worst=state.worst).take(which)
    if isinstance(attack, StepAttack):
        fooled_before = int((state.fooled_by[which] >= 0).sum())

        def report(share: float, fooled: int) -> None:
            if progress is not None:
                progress(share, max(0, fooled - fooled_before))

        outcome = run_attack(
            engine, stage.key, attack, part, source=stage.source, precise=stage.precise, progress=report
        )
    else:
        outcome = engine.run_with_retries(part, stage.source, lambda view: run_plain_attack(engine, attack, part, view))
        state.outside[which] |= outcome.margin == -torch.inf
    state.add(number, which, outcome)


def is_user_function(attack: object) -> bool:
    """Return whether an attack is a user's attack function, whose images and effects have to be checked."""
    return attack is not None and not isinstance(attack, StepAttack | PGD)


def call_attack(attack: PlainAttack, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the images of an attack. Those of a user's function are checked, and so is the mode of the model."""
    if not is_user_function(attack):
        return attack(model, images, labels)
    # Copies, because the attack may change its arguments in place.
    adversarial = check_returned(attack(model, images.clone(), labels.clone()), images)
    try:
        check_eval(model)
    except ValueError as error:
        found, hint = "one that leaves it in train mode", "call model.eval() at its end, or attack a copy"
        raise ValueError(f"expected an attack that leaves the model in eval mode, got {found}: {hint}") from error
    return adversarial


def with_unchanged_model(
    batches: Iterable[BatchType], attack: PlainAttack | None, model: nn.Module
) -> Iterator[BatchType]:
    """Yield the batches; raise an error after the first or the last if a user's attack function changed the model.

    A digest reads all weights, so that one after every batch would take too long.
    """
    before = _weights_and_hooks(model) if is_user_function(attack) else None

    def check() -> None:
        if before is not None and _weights_and_hooks(model) != before:
            hint = "attack copy.deepcopy(model), restore them, or keep counters outside of buffers"
            expected = "an attack that leaves weights, buffers and hooks as they are"
            raise ValueError(f"expected {expected}, got others afterwards: {hint}")

    for number, batch in enumerate(batches):
        if number == 1:
            check()
        yield batch
    check()


def _weights_and_hooks(model: nn.Module) -> tuple[str, list[object]]:
    """Return a digest of the weights, and the hooks and replaced methods of all modules."""
    modules = list(model.modules())
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    hooks = [[*getattr(module, kind)] for module in modules for kind in kinds]
    return weights_digest(model), [*hooks, *(vars(module).get("forward") for module in modules)]


def run_plain_attack(engine: Engine, attack: PlainAttack, inputs: AttackInput, view: nn.Module | None) -> AttackOutcome:
    """Call an attack that is not a `StepAttack`, batch by batch, and confirm its successes."""
    attacked, found, queries = view or engine.model, [], torch.zeros_like(inputs.labels)
    batches = torch.arange(len(inputs), device=inputs.labels.device).split(engine.size)
    for rows in with_unchanged_model(batches, attack, attacked):
        part = inputs.take(rows)
        if isinstance(attack, PGD):
            attack = replace(attack, threat=attack.threat.with_eps(part.threat.eps))
        calls: list[int] = []
        with attacked.register_forward_hook(lambda module, images, logits, calls=calls: calls.append(len(logits))):
            found.append(call_attack(attack, attacked, part.images, part.labels))
        queries[rows] = len(calls)
        engine.passes.add(sum(calls), gradient=True)
    worst = torch.cat(found)
    inside = inside_threat(worst, inputs.images, inputs.threat)
    if outside := int((~inside).sum()):  # images that do not count would make the model look robust
        check_share_outside(outside, len(inputs), inputs.threat)
        warn_user(f"{describe_outside(outside, len(inputs), inputs.threat)}: {OUTSIDE_HINT}")
        worst = worst.where(column(inside, worst), inputs.images)
    margin, logits = confirm(engine.model, worst, inputs.images, inputs.labels, inputs.threat)
    margin = margin.where(inside, -torch.inf)
    return AttackOutcome(margin > 0, worst, margin, logits, queries)
