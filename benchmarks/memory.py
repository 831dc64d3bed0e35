"""Measure the memory that public functions reserve on a GPU: before the call, at its peak, and after it.

    python benchmarks/memory.py resnet18-standard resnet18-robust --out benchmarks/results/memory.json

All calls are made in one process, one after the other, as in a notebook: five short evaluations, one of 1,000 images,
the same without a bound of the batch and with limits of memory, the training of a mixing network, a search for a fixed
alpha without and with a limit, MixedNUTS, a trade-off, certificates, an export, a compiled evaluation, and the first
one again. A call gives its memory back if it reserves within 0.5 GiB of what it found. Robust accuracy and alarms must
not depend on the limit.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from clock import clocked
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.evaluation.verdict import Evaluation
from adaptive_smoothing.models import memory
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.training.mixing.recipe import default_recipe

THREAT = ads.Linf(8 / 255)
LIMITS = ("24G", "8G", "6G", "3G")
GIB = 2**30


def measured(name: str, work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Run `work` and return the memory it reserved, in GiB, and its result."""
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    result, seconds = clocked(work)
    sizes = {"before": before, "peak": torch.cuda.max_memory_reserved(), "after": torch.cuda.memory_reserved()}
    row = {"call": name, "seconds": seconds, **{key: size / GIB for key, size in sizes.items()}}
    if isinstance(result, Evaluation):
        row |= {"robust": result.robust, "alarms": [alarm.name for alarm in getattr(result, "alarms", ())]}
    print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    return row, result


def calls(g: nn.Module, h: nn.Module, images: int) -> dict[str, Callable[[], Any]]:
    """Return the calls by name, in order."""
    data, val = ads.load_data("builtin", "test").take(slice(images)), ads.load_data("builtin", "val")
    half = len(val) // 2
    train, val = val.take(slice(half)), val.take(slice(half, None))
    mixed, few = ads.MixedClassifier(g, h, 0.8), data.take(slice(200))
    recipe = default_recipe(THREAT, "memory", clean_accuracy=0.88)
    short = replace(recipe, optimizer=replace(recipe.optimizer, epochs=2, batch_size=128))

    def evaluate(model: nn.Module, part: ads.ImageData, **options: Any) -> Evaluation:
        return ads.evaluate(model, part, "fast", THREAT, options=ads.EvaluationOptions(**options))

    def train_mixing() -> ads.MixedClassifier:
        with warnings.catch_warnings(action="ignore"), tempfile.TemporaryDirectory() as folder:
            untrained = ads.MixedClassifier(g, h, ads.FineTunedTail.of(h))
            return ads.train_mixing(untrained, train, val, THREAT, recipe=short, folder=folder)

    def evaluate_unbounded() -> Evaluation:
        with patch.object(memory, "BATCH_BYTES", 2**50):
            return evaluate(mixed, data)

    def tune() -> ads.MixedClassifier:
        return ads.tune(mixed, val, clean_accuracy=0.9, threat=THREAT, attacked=100)

    def tune_limited() -> ads.MixedClassifier:
        with memory.limited_memory(LIMITS[-1], torch.device("cuda")):
            return tune()

    def export() -> object:
        with warnings.catch_warnings(action="ignore"), tempfile.TemporaryDirectory() as folder:
            return mixed.export(Path(folder) / "mixed.pt2")

    limits = {f"evaluate, {limit}": lambda limit=limit: evaluate(mixed, data, memory=limit) for limit in LIMITS}
    return {
        **{f"evaluate 200 images, round {number}": lambda: evaluate(mixed, few) for number in range(1, 6)},
        f"evaluate {len(data):,} images": lambda: evaluate(mixed, data),
        "evaluate, batches of any size": evaluate_unbounded,
        **limits,
        "train_mixing": train_mixing,
        "tune": tune,
        f"tune, {LIMITS[-1]}": tune_limited,
        "fit_nonlinear": lambda: ads.fit_nonlinear(g, h, val, THREAT, clean_accuracy=0.9, attacked=100),
        "tradeoff": lambda: ads.tradeoff(g, h, few, ads.PGD(THREAT, steps=20), mix_alphas=(0.5,)),
        "certify": lambda: ads.certify(ads.SmoothedClassifier(h, 0.25), data.take(slice(20)), samples=10_000),
        "export": export,
        "evaluate h, compiled": lambda: evaluate(h, few, compiled=True),
        f"evaluate {len(data):,} images again": lambda: evaluate(mixed, data),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    g, h = (ads.load_model(name, device="cuda") for name in (args.standard, args.robust))
    rows = []
    for name, work in calls(g, h, args.images).items():
        rows.append(measured(name, work)[0])
        # Written after each call, in case the next one fails.
        if args.out:
            write_json(args.out, {"models": [args.standard, args.robust], "rows": rows, **environment("cuda")})


if __name__ == "__main__":
    main()
