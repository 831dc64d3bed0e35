"""Run attacks on mixtures one at a time: the parts of AutoAttack, other losses, and objectives for mixtures.

    python benchmarks/objectives.py resnet18-standard resnet18-robust --alpha 0.852 0.8 0.6 \\
        --out benchmarks/results/objectives.json
    python benchmarks/objectives.py resnet18-mixed compact-mixed --out benchmarks/results/objectives-learned.json

The mixtures are two models at some alphas, or stored mixtures by name or folder. For each mixture and attack, the JSON
has the robust accuracy, the number of robust images that another attack fools, and seconds. A learned alpha gets more
attacks: a worst-case g, a smoothed alpha, a less steep alpha, and one that lowers alpha first. A transformed h gets
attacks on the mixture without the transform. An .npz next to the JSON has the robust images of each attack.
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
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.objectives import (
    flip_standard,
    flip_standard_margin,
    logit_margin,
    require_targets,
    targeted_margin,
    targeted_probability,
    worst_case_standard,
)
from adaptive_smoothing.attacks.presets import TARGETS, auto_attack, full_precision_stage
from adaptive_smoothing.attacks.views import (
    Lacks,
    SmoothedSurrogate,
    WithoutTransforms,
    has_transformed_robust,
    learns_alpha,
)
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.threat import Linf, Threat

# A larger budget, to see whether more restarts or steps fool more images.
RESTARTS = 5
STEPS = 500
QUIET = EvaluationOptions(alarms=False)


@dataclass(frozen=True)
class LessSteep:
    """A view of the mixture whose alpha is less steep around the same score, so that its gradient does not vanish."""

    scale: float

    def __call__(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, MixedClassifier)
        return model.with_sigmoid(self.scale, self.scale / model.alpha_scale * model.alpha_shift)


@dataclass(frozen=True)
class GiveWay:
    """An objective that lowers alpha and moves g to the target class, without regard to h."""

    weight: float = 20.0
    largest_margin: float = 5.0

    def __call__(
        self, model: Any, images: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mixture = model.mix(images)
        lead = -logit_margin(mixture.g, require_targets(targets)).clamp(min=-self.largest_margin)
        return lead - self.weight * mixture.alpha, mixture.logits


def has_score(model: nn.Module) -> bool:
    """Return whether alpha is a sigmoid of a score, which `LessSteep` can change."""
    return isinstance(model, MixedClassifier) and isinstance(model.alpha, Mixer)


def has_both(model: nn.Module) -> bool:
    """Return whether the mixture has a score and a transformed h."""
    return has_score(model) and has_transformed_robust(model)


def less_steep_plain(model: nn.Module) -> nn.Module:
    """Return the mixture without the transform of h, and with a less steep alpha."""
    assert isinstance(model, MixedClassifier)
    return LessSteep(1.0)(model.plain())


def attacks(threat: Threat) -> dict[str, Stage]:
    """Return the attacks by title. An attack with a condition (`needs`) is run only on models that meet it."""

    def targeted(objective: Any, source: Any = None, needs: Any = None, **budget: int) -> Stage:
        return Stage("apgd", APGD(threat, objective=objective, target_classes=TARGETS, **budget), source, needs)

    ce, dlr, fab, *_ = auto_attack(threat).stages
    worst_case, plain = "APGD-T, worst-case g", "h without its transform"
    h_itself = WithoutTransforms(alpha=1.0)
    return {
        "APGD-CE": ce,
        "APGD-T, DLR": dlr,
        "FAB-T": fab,
        "APGD-T, margin": targeted(targeted_margin),
        "APGD-T, targeted probability": targeted(targeted_probability),
        "APGD-T, flip g": targeted(flip_standard),
        f"APGD-T, flip g, {RESTARTS} restarts": targeted(
            flip_standard, needs=Lacks(learns_alpha), restarts=RESTARTS, seed=1
        ),
        worst_case: targeted(worst_case_standard, needs=learns_alpha),
        f"{worst_case}, smoothed alpha": targeted(worst_case_standard, SmoothedSurrogate(), learns_alpha),
        **{
            f"{worst_case}, alpha scale {scale:g}": targeted(worst_case_standard, LessSteep(scale), has_score)
            for scale in (1.0, 3.0, 10.0)
        },
        "APGD-T, lower alpha and flip g, alpha scale 1": targeted(GiveWay(), LessSteep(1.0), has_score),
        f"APGD-T, margin, {RESTARTS} restarts": targeted(
            targeted_margin, needs=learns_alpha, restarts=RESTARTS, seed=1
        ),
        f"APGD-T, margin, {STEPS} steps": targeted(targeted_margin, needs=learns_alpha, steps=STEPS),
        f"APGD-T, margin, {plain}": targeted(targeted_margin, WithoutTransforms(), has_transformed_robust),
        f"APGD-T, flip g, {plain}": targeted(flip_standard, WithoutTransforms(), has_transformed_robust),
        f"{worst_case}, {plain}": targeted(worst_case_standard, WithoutTransforms(), has_transformed_robust),
        f"APGD-T, margin of h, flip g, {plain}": targeted(flip_standard_margin, h_itself, has_transformed_robust),
        f"{worst_case}, alpha scale 1, {plain}": targeted(worst_case_standard, less_steep_plain, has_both),
    }


def measure(
    model: nn.Module, data: ImageData, stages: dict[str, Stage], device: str
) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]]:
    """Run each attack alone, and yield the results so far: numbers per attack, and the robust images of each attack.

    Images that are robust only by a rounding error are attacked again in full precision.
    """
    seconds: dict[str, float] = {}
    robust: dict[str, np.ndarray] = {}
    for name, stage in stages.items():
        if stage.needs is not None and not stage.needs(model):
            continue
        threat = stage.attack.threat  # type: ignore[union-attr]
        began = time.perf_counter()
        verdict = evaluate(
            model, data, Cascade(name, threat, (stage, full_precision_stage(threat, 0))), device=device, options=QUIET
        )
        robust[name], seconds[name] = verdict.robust_correct.numpy(), round(time.perf_counter() - began, 1)
        print(f"{name}: {verdict.robust:.2%} in {seconds[name]} s", flush=True)
        everything = np.logical_and.reduce(list(robust.values()))
        # In the file, robust accuracy is called "stands", and images that only other attacks fool "fell to another".
        rows: dict[str, dict[str, Any]] = {
            name: {"stands": float(left.mean()), "fell to another": int((left & ~everything).sum())}
            for name, left in (robust | {"all of them": everything}).items()
        }
        for attack, took in seconds.items():
            rows[attack]["seconds"] = took
        yield rows, robust


def mixtures(models: list[str], alphas: list[float], device: str) -> Iterator[tuple[str, LoadedModel]]:
    """Yield the mixtures of two models at each alpha, or stored mixtures."""
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
    for name, loaded in mixtures(args.models, args.alpha, args.device):
        print(name, flush=True)
        facts["models"][name] = loaded.facts
        for found[name], robust in measure(loaded.model, data, attacks(Linf(8 / 255)), args.device):
            columns |= {f"{name}: {attack}": left for attack, left in robust.items()}
            if args.out:
                write_json(args.out, {"mixtures": found, "facts": {**facts, **environment(args.device)}})
                write_rows(args.out.with_suffix(".npz"), columns)


if __name__ == "__main__":
    main()
