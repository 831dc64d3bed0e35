"""What each attack makes of a mixture when it is alone: AutoAttack's parts, other losses, the objective that turns g.

    python benchmarks/objectives.py resnet18-standard resnet18-robust --alpha 0.852 0.8 0.6 \\
        --out benchmarks/results/objectives.json

For each alpha and attack: what stands it, how many of those fall to another one, and seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import TARGETS, AutoAttack, in_full_precision
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.objectives import targeted_margin, targeted_probability, turn_standard
from adaptive_smoothing.cli.evaluate import Subject
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.judging import judge
from adaptive_smoothing.report.facts import environment, model_facts
from adaptive_smoothing.results import write_json
from adaptive_smoothing.threat import Linf, Threat

# To see whether more of the same would break more.
RESTARTS = 5


def contestants(threat: Threat) -> dict[str, Stage]:
    climbs = {
        "margin": targeted_margin,
        "lead in probability": targeted_probability,
        "turning g": turn_standard,
    }
    targeted = {
        f"APGD-T, {name}": Stage("apgd", APGD(threat, climb=climb, target_classes=TARGETS))
        for name, climb in climbs.items()
    }
    ce, dlr, fab, *_ = AutoAttack(threat).stages
    again = APGD(threat, climb=turn_standard, target_classes=TARGETS, restarts=RESTARTS, seed=1)
    return {
        "APGD-CE": ce,
        "APGD-T, DLR": dlr,
        "FAB-T": fab,
        **targeted,
        f"APGD-T, turning g, {RESTARTS} restarts": Stage("apgd", again),
    }


def measure(model: nn.Module, data: ImageData, stages: dict[str, Stage], device: str) -> dict[str, dict[str, Any]]:
    """Each attack alone, with what stands it by a rounding error attacked again in full precision."""
    rows, stands = {}, {}
    for name, stage in stages.items():
        threat = stage.attack.threat  # type: ignore[union-attr]
        began = time.perf_counter()
        verdict = judge(
            model, data, Cascade(name, threat, (stage, in_full_precision(threat, 0))), device=device, with_alarms=False
        )
        stands[name] = verdict.robust_correct.numpy()
        rows[name] = {"stands": verdict.robust, "seconds": round(time.perf_counter() - began, 1)}
        print(name, rows[name], flush=True)
    everything = np.logical_and.reduce(list(stands.values()))
    for name, row in rows.items():
        row["fell to another"] = int((stands[name] & ~everything).sum())
    return rows | {"all of them": {"stands": float(everything.mean()), "fell to another": 0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--alpha", type=float, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = datasets.load("builtin", "test").take(args.images)
    models = {"g": model_facts(args.standard), "h": model_facts(args.robust)}
    facts = {"models": models, "data": data.name, "fingerprint": data.fingerprint(), "images": len(data)}
    found: dict[str, Any] = {}
    for alpha in args.alpha:
        print(f"alpha {alpha:g}", flush=True)
        mixture = Subject.load(args.standard, args.robust, alpha, args.device).model
        found[f"{alpha:g}"] = measure(mixture, data, contestants(Linf(8 / 255)), args.device)
        if args.out:
            write_json(args.out, {"alphas": found, "facts": {**facts, **environment(args.device)}})


if __name__ == "__main__":
    main()
