"""Measure the speed and the error of attack steps in each arithmetic of a device.

    python benchmarks/arithmetic.py G H --data-root DATA --out benchmarks/results/arithmetic.json

The models are g, h, their mixture with one alpha, and MixedNUTS, which raises the logits of h to a power. A step is one
forward and one backward pass. The error is the largest error of a logit, as a share of the spread of the logits.
Attacks use the first arithmetic whose error on the first eight images is within the bound.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from clock import clocked
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.arithmetic import (
    FULL_PRECISION,
    TOLERANCE,
    Arithmetic,
    FastModel,
    fast_arithmetics,
)
from adaptive_smoothing.attacks.engine.job_batch import Victim
from adaptive_smoothing.attacks.objectives import cross_entropy
from adaptive_smoothing.data import datasets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment

# The best transform that a search found at 90 % clean accuracy on the ResNet-18 pair.
MIXEDNUTS = {"scale": 1.0, "power": 8.0, "shift": -0.75}
MIXEDNUTS_ALPHA = 0.99985
ROUNDS = 5


def models(g: nn.Module, h: nn.Module) -> dict[str, nn.Module]:
    """Return the models to measure, by name."""
    return {
        "g": g,
        "h": h,
        "one alpha, 0.85": MixedClassifier(g, h, 0.85),
        "MixedNUTS": MixedClassifier(Hardmax(g), Nonlinear(h, **MIXEDNUTS), MIXEDNUTS_ALPHA),
    }


def images_per_second(model: nn.Module, arithmetic: Arithmetic, images: Tensor, labels: Tensor) -> float:
    """Return the images per second of a step, the median of some rounds."""
    victim = Victim(FastModel(model, images.device, arithmetic), arithmetic=arithmetic)
    state, rounds = {"label": labels, "target": labels}, []
    for _ in range(ROUNDS + 1):
        rounds.append(clocked(lambda: victim.answer(cross_entropy, images, state))[1])
    return len(images) / statistics.median(rounds[1:])  # the first one warms up


def errors(model: nn.Module, arithmetic: Arithmetic, images: Tensor) -> dict[str, float]:
    """Return the median and the largest error, and the share of images whose error is above the bound."""
    logits = fp32_logits_chunked(model, images)
    batches = zip(images.split(500), logits.split(500), strict=True)
    largest = torch.cat([arithmetic.error(model, *batch) for batch in batches])
    error = largest / (logits.amax(1) - logits.amin(1))
    return {
        "median": error.median().item(),
        "largest": error.max().item(),
        "above_bound": (error > TOLERANCE).double().mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=2048, help="validation images, in one batch for the speed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    g, h = (zoo.load(name, device=device).requires_grad_(False) for name in (options.standard, options.robust))
    data = datasets.load(options.data, "val", root=options.data_root).take(slice(options.images)).to(device)
    images = data.floats()
    rows: list[dict[str, Any]] = []
    for name, model in models(g, h).items():
        for arithmetic in (*fast_arithmetics(device), FULL_PRECISION):
            row: dict[str, Any] = {"model": name, "arithmetic": arithmetic.name, **errors(model, arithmetic, images)}
            row["images_per_second"] = round(images_per_second(model, arithmetic, images, data.labels))
            rows.append(row)
            print(row, flush=True)
    facts = {"models": [options.standard, options.robust], "images": len(data), "bound": TOLERANCE}
    write_json(options.out, facts | {"rows": rows} | environment(device))


if __name__ == "__main__":
    main()
