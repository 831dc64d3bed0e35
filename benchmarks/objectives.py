"""What each attack makes of a mixture when it is alone: AutoAttack's parts, other losses, the objective that turns g.

    python benchmarks/objectives.py resnet18-standard resnet18-robust --alpha 0.852 0.8 0.6 \\
        --out benchmarks/results/objectives.json
    python benchmarks/objectives.py resnet18-mixed compact-mixed --out benchmarks/results/objectives-learned.json

Of two models at some alphas, or of mixtures by name or folder. For each mixture and attack: what stands it, how many of
those fall to another one, and seconds. A learned alpha meets more attacks: with a g that says the target, past flat
places of alpha, with an alpha that is less steep, and after alpha alone; an h that is transformed those on the mixture
without the transform. What stands each attack is kept image by image in an .npz beside the JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import TARGETS, auto_attack, full_precision_stage
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.losses import logit_margin, require_targets
from adaptive_smoothing.attacks.objectives import (
    flip_standard,
    flip_standard_margin,
    targeted_margin,
    targeted_probability,
    worst_case_standard,
)
from adaptive_smoothing.attacks.views import (
    SmoothedSurrogate,
    WithoutTransforms,
    has_transformed_robust,
    lacks_learned_alpha,
    learns_alpha,
)
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import evaluate_cascade
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.mixing.mixer import Mixer
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.threat import Linf, Threat

# To see whether more of the same would break more.
RESTARTS = 5
STEPS = 500


@dataclass(frozen=True)
class LessSteep:
    """The mixture whose alpha rises more slowly about the same score, so that it is flat nowhere near."""

    scale: float

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        return model.with_sigmoid(self.scale, self.scale / model.alpha_scale * model.alpha_shift)


@dataclass(frozen=True)
class GiveWay:
    """Alpha down and g to the target, whatever h says."""

    weight: float = 20.0
    sure: float = 5.0

    def __call__(
        self, model: Any, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixture = model.mix(images)
        lead = -logit_margin(mixture.g, require_targets(targets)).clamp(min=-self.sure)
        return lead - self.weight * mixture.alpha, mixture.logits


def has_score(model: nn.Module) -> bool:
    return isinstance(model, MixedClassifier) and isinstance(model.alpha, Mixer)


def has_both(model: nn.Module) -> bool:
    return has_score(model) and has_transformed_robust(model)


def less_steep_plain(model: nn.Module) -> nn.Module:
    assert isinstance(model, MixedClassifier)
    return LessSteep(1.0)(model.plain())


def contestants(threat: Threat) -> dict[str, Stage]:
    def targeted(objective: Any, source: Any = None, needs: Any = None, **budget: int) -> Stage:
        return Stage("apgd", APGD(threat, objective=objective, target_classes=TARGETS, **budget), source, needs)

    ce, dlr, fab, *_ = auto_attack(threat).stages
    hostile, plain = "APGD-T, hostile g", "h without its transform"
    h_itself = WithoutTransforms(alpha=1.0)
    return {
        "APGD-CE": ce,
        "APGD-T, DLR": dlr,
        "FAB-T": fab,
        "APGD-T, margin": targeted(targeted_margin),
        "APGD-T, lead in probability": targeted(targeted_probability),
        "APGD-T, turning g": targeted(flip_standard),
        f"APGD-T, turning g, {RESTARTS} restarts": targeted(
            flip_standard, needs=lacks_learned_alpha, restarts=RESTARTS, seed=1
        ),
        hostile: targeted(worst_case_standard, needs=learns_alpha),
        f"{hostile}, past a flat alpha": targeted(worst_case_standard, SmoothedSurrogate(), learns_alpha),
        **{
            f"{hostile}, alpha's scale {scale:g}": targeted(worst_case_standard, LessSteep(scale), has_score)
            for scale in (1.0, 3.0, 10.0)
        },
        "APGD-T, alpha down and g turned, alpha's scale 1": targeted(GiveWay(), LessSteep(1.0), has_score),
        f"APGD-T, margin, {RESTARTS} restarts": targeted(
            targeted_margin, needs=learns_alpha, restarts=RESTARTS, seed=1
        ),
        f"APGD-T, margin, {STEPS} steps": targeted(targeted_margin, needs=learns_alpha, steps=STEPS),
        f"APGD-T, margin, {plain}": targeted(targeted_margin, WithoutTransforms(), has_transformed_robust),
        f"APGD-T, turning g, {plain}": targeted(flip_standard, WithoutTransforms(), has_transformed_robust),
        f"{hostile}, {plain}": targeted(worst_case_standard, WithoutTransforms(), has_transformed_robust),
        f"APGD-T, margin of h, turning g, {plain}": targeted(flip_standard_margin, h_itself, has_transformed_robust),
        f"{hostile}, alpha's scale 1, {plain}": targeted(worst_case_standard, less_steep_plain, has_both),
    }


def measure(
    model: nn.Module, data: ImageData, stages: dict[str, Stage], device: str
) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]]:
    """Each attack alone, with what stands it by a rounding error attacked again in full precision; after each of them
    what is known so far, in numbers and image by image."""
    seconds: dict[str, float] = {}
    stands: dict[str, np.ndarray] = {}
    for name, stage in stages.items():
        if stage.needs is not None and not stage.needs(model):
            continue
        threat = stage.attack.threat  # type: ignore[union-attr]
        began = time.perf_counter()
        verdict = evaluate_cascade(
            model,
            data,
            Cascade(name, threat, (stage, full_precision_stage(threat, 0))),
            device=device,
            options=EvaluationOptions(alarms=False),
        )
        stands[name], seconds[name] = verdict.robust_correct.numpy(), round(time.perf_counter() - began, 1)
        print(f"{name}: {verdict.robust:.2%} in {seconds[name]} s", flush=True)
        everything = np.logical_and.reduce(list(stands.values()))
        rows: dict[str, dict[str, Any]] = {
            name: {"stands": float(left.mean()), "fell to another": int((left & ~everything).sum())}
            for name, left in (stands | {"all of them": everything}).items()
        }
        for attack, took in seconds.items():
            rows[attack]["seconds"] = took
        yield rows, stands


def subjects(models: list[str], alphas: list[float], device: str) -> Iterator[tuple[str, LoadedModel]]:
    """Two models at each alpha, or mixtures as they are."""
    if alphas:
        standard, robust = models
        for alpha in alphas:
            yield f"α = {alpha:g}", LoadedModel.load(standard, robust, alpha, device)
        return
    for name in models:
        yield name, LoadedModel.load(name, None, None, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="G and H with --alpha, or mixtures")
    parser.add_argument("--alpha", type=float, nargs="+", default=[])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.alpha and len(args.models) != 2:
        parser.error(f"expected G and H with --alpha, got {len(args.models)} models")
    data = datasets.load("builtin", "test").take(args.images)
    facts = {"data": data.name, "fingerprint": data.fingerprint(), "images": len(data), "models": {}}
    found: dict[str, Any] = {}
    columns = {"index": data.index.numpy(), "label": data.labels.numpy()}
    for name, subject in subjects(args.models, args.alpha, args.device):
        print(name, flush=True)
        facts["models"][name] = subject.facts
        for found[name], stands in measure(subject.model, data, contestants(Linf(8 / 255)), args.device):
            columns |= {f"{name}: {attack}": left for attack, left in stands.items()}
            if args.out:
                write_json(args.out, {"mixtures": found, "facts": {**facts, **environment(args.device)}})
                write_rows(args.out.with_suffix(".npz"), columns)


if __name__ == "__main__":
    main()
