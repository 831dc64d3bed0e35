"""Compare robust classifiers h by their mixtures with g, on validation images, at the same clean accuracy.

    python benchmarks/candidates.py compact-standard compact-robust runs/other/compact-robust.safetensors \\
        --data-root DIR --out results/candidates/compact.json

For every candidate h and every requested clean accuracy, alpha is the largest that has it on the validation images. The
mixture is attacked there with PGD-20 on g, on h and on the mixture; an image counts if it survives all three. The other
candidates are compared with the first one: the difference is over the same images, with a 95 % interval. Alpha is
chosen on the attacked images, which favours all candidates equally. The test images are not used.
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
from adaptive_smoothing.evaluation.sweep import tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.results import difference, write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.curves import accuracy_curve


def measure(
    g: nn.Module, h: nn.Module, data: ImageData, wanted: list[float], steps: int, size: int
) -> tuple[dict[str, Any], np.ndarray]:
    """Return figures of a candidate, and for every requested accuracy whether each image survives all attacks."""
    curve = accuracy_curve(MixedClassifier(g, h, 0.5), data, batch_size=size)
    alphas = [curve.largest_setting(target) for target in wanted]
    run = tradeoff(g, h, data, PGD(Linf(8 / 255), steps=steps), mix_alphas=sorted(alphas), batch_size=size)
    robust = run.correct("worst")[[sorted(alphas).index(alpha) for alpha in alphas]]
    alone = run.rows["clean_h"]
    figures = {
        "clean": float(alone.mean()),
        "pgd": float((alone & run.rows["rob_h"]).mean()),
        "at": [
            {"clean accuracy": target, "alpha": alpha, "robust accuracy": float(correct.mean())}
            for target, alpha, correct in zip(wanted, alphas, robust, strict=True)
        ],
    }
    return figures, robust


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust", nargs="+")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, help="number of validation images; default: all")
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
        figures, robust = measure(g, h, data, arguments.wanted, arguments.steps, size)
        first = robust if first is None else first
        for row, candidate, reference in zip(figures["at"], robust, first, strict=True):
            row["ahead"], row["give or take"] = difference(candidate, reference)
        rows.append({"h": model_facts(name), **figures})
        print(json.dumps({"h": name, **figures}), flush=True)
    if arguments.out:
        facts = {"g": model_facts(arguments.standard), "images": len(data), "steps": arguments.steps}
        write_json(arguments.out, {**facts, "candidates": rows, **environment(arguments.device)})


if __name__ == "__main__":
    main()
