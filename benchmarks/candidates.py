"""Which robust half makes the better mixture? Decided on validation images, at the same clean accuracy for all.

    python benchmarks/candidates.py compact-standard compact-robust runs/other/compact-robust.safetensors \\
        --data-root DIR --out results/candidates/compact.json

For every candidate h and every wanted clean accuracy, alpha is the largest that has it on the validation images, and
the mixture is attacked there (PGD-20 on g, on h and on the mixture; an image counts if it stands all three). The
first h is what the others are held against: the difference is over the same images, with a 95 % interval. Alpha
is chosen on the images it is attacked on, which favours all candidates alike; the test images are not touched.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.tradeoff import tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts
from adaptive_smoothing.results import difference, write_json
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.curves import clean_accuracy


def measure(
    g: nn.Module, h: nn.Module, data: ImageData, wanted: list[float], steps: int, size: int
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of a candidate, and for every wanted accuracy whether each image stands all attacks."""
    accuracy = clean_accuracy(g, h, data, batch_size=size)
    alphas = [accuracy.largest(target) for target in wanted]
    run = tradeoff(g, h, data, PGD(Linf(8 / 255), steps=steps), mix_alphas=sorted(alphas), batch_size=size)
    stands = run.correct("worst")[[sorted(alphas).index(alpha) for alpha in alphas]]
    alone = run.rows["clean_h"]
    figures = {
        "clean": float(alone.mean()),
        "pgd": float((alone & run.rows["rob_h"]).mean()),
        "at": [
            {"clean accuracy": target, "alpha": alpha, "stands all": float(right.mean())}
            for target, alpha, right in zip(wanted, alphas, stands, strict=True)
        ],
    }
    return figures, stands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust", nargs="+")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, help="the first so many validation images; default all")
    parser.add_argument("--wanted", type=float, nargs="+", default=[0.88, 0.9, 0.92])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    data = datasets.load(arguments.data, "val", root=arguments.data_root).take(slice(arguments.images))
    g = zoo.load(arguments.standard, device=arguments.device)
    size = 50 if arguments.device == "cpu" else 1000
    rows: list[dict[str, Any]] = []
    first = None
    for name in arguments.robust:
        h = zoo.load(name, device=arguments.device)
        figures, stands = measure(g, h, data, arguments.wanted, arguments.steps, size)
        first = stands if first is None else first
        for row, mine, theirs in zip(figures["at"], stands, first, strict=True):
            row["ahead"], row["give or take"] = difference(mine, theirs)
        rows.append({"h": model_facts(name), **figures})
        print(json.dumps({"h": name, **figures}), flush=True)
    if arguments.out:
        facts = {"g": model_facts(arguments.standard), "images": len(data), "steps": arguments.steps}
        write_json(arguments.out, {**facts, "candidates": rows, **environment(arguments.device)})


if __name__ == "__main__":
    main()
