"""Compare our attacks with the reference AutoAttack (`pyautoattack` on PyPI) on the same images and the same model.

    python benchmarks/attacks.py resnet18-robust --images 1000 --out benchmarks/results/attacks-h.json
    python benchmarks/attacks.py resnet18-standard resnet18-robust --alpha 0.8 ...
    python benchmarks/attacks.py wrn-16-4 --weights wrn-16-4.safetensors ...      # a model of foreign_models.py
    python benchmarks/attacks.py timm-resnet18 --weights resnet18-robust ...
    python benchmarks/attacks.py small-robust --images 16 --device cpu

For each attack: seconds, forward and backward passes per image, robust accuracy, and the number of images that only
this attack fooled. Each attack runs in a new process: its first run is cold, and the median of the others is warm. Ours
runs with default settings, alarms included, and compiled. The reference runs with its own defaults (batches of 250),
with frozen weights, and with all images in one batch. If its first run takes more than a minute, it is not repeated.

Triton and torch's compiler keep what they have compiled in caches on disk, as this package does with a digest of its
code. For "fast, first time" and for compiled attacks these caches are empty at first; for the others they are filled.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import foreign_models
import torch
from clock import clocked
from torch import Tensor, nn

from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.runs.journal import Journal
from adaptive_smoothing.threat import Linf

EPS = 8 / 255
# An attack is repeated until this many seconds are measured. The reference is not repeated if it takes longer than
# `LONG`: most of its time is not spent on starting.
ENOUGH, LONG = 6.0, 60.0


@dataclass(frozen=True)
class Case:
    """A model and images, which each process loads for itself.

    Args:
        names: MODEL, or G and H.
        weights: of a model of foreign_models.py: a file, or the name of our model.
    """

    names: tuple[str, ...]
    alpha: float | None
    weights: str | None
    images: int
    data: str
    data_root: str | None
    split: str
    device: str

    def load_data(self) -> ImageData:
        return datasets.load(self.data, self.split, root=self.data_root).take(self.images)

    def load_model(self) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model and facts about it."""
        if self.weights is not None:
            name = self.names[0]
            return foreign_models.load(name, self.weights, self.device), {"model": {"name": name}}
        loaded = LoadedModel.load(self.names[0], (*self.names, None)[1], self.alpha, self.device)
        return loaded.model, loaded.facts


class Counting(nn.Module):
    """Counts the images that pass through a model, forwards and backwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forward_images, self.backward_images = model, 0, 0
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        self.forward_images += len(images)
        logits = self.model(images)
        if logits.requires_grad and images.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.backward_images += len(gradient)


def timed(work: Callable[[], Any], longest: float = math.inf) -> tuple[Any, dict[str, Any]]:
    """Run `work` cold and then until enough seconds are measured. Return the last result and the seconds.

    If the first run takes longer than `longest`, it is the only one.
    """
    result, cold = clocked(work)
    seconds: list[float] = [cold] if cold > longest else []
    while sum(seconds) < ENOUGH:
        result, took = clocked(work)
        seconds.append(took)
    return result, {"cold": cold, "seconds": statistics.median(seconds), "rounds": len(seconds)}


def ours(case: Case, name: str, compiled: bool) -> dict[str, Any]:
    """Run one of our presets, as `evaluate` does."""
    (model, _), data, device = case.load_model(), case.load_data(), torch.device(case.device)
    runs: list[EvaluationRun] = []

    def work() -> Verdict:
        run = EvaluationRun(
            model=model,
            data=data,
            cascade=preset(name, Linf(EPS)).for_model(model),
            device=device,
            journal=Journal(),
            options=EvaluationOptions(compiled=compiled),
        )
        runs[:] = [run]
        return run.run()

    verdict, row = timed(work)
    passes = runs[0]._engine.passes
    row |= {"forwards": passes.forward, "backwards": passes.backward}
    return row | {"robust": verdict.index[verdict.robust_correct].tolist()}


def reference(case: Case, freeze: bool, batch_size: int | None) -> dict[str, Any]:
    """Run the reference AutoAttack."""
    from pyautoattack import AutoAttack

    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    (model, _), data, device = case.load_model(), case.load_data(), torch.device(case.device)
    batch = next(iter(batches(data, len(data), device=device)))
    model.requires_grad_(not freeze)
    counting = Counting(model)

    def work() -> tuple[Tensor, Tensor]:
        counting.forward_images = counting.backward_images = 0
        attack = AutoAttack(counting, norm="Linf", eps=EPS, version="standard", seed=0, device=device)
        return attack.run_standard_evaluation(batch.images, batch.labels, batch_size=batch_size or len(data))

    (images, _), row = timed(work, LONG)
    model.requires_grad_(False)
    robust = fp32_logits_chunked(model, images).argmax(1) == batch.labels
    row |= {"forwards": counting.forward_images, "backwards": counting.backward_images}
    return row | {"robust": batch.index[robust].tolist()}


# The functions that run the attacks, with their arguments after the case.
ATTACKS: dict[str, tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = {
    "fast, first time": (ours, ("fast", False)),
    "fast": (ours, ("fast", False)),
    "standard": (ours, ("standard", False)),
    "fast, compiled": (ours, ("fast", True)),
    "standard, compiled": (ours, ("standard", True)),
    "reference, frozen, one batch": (reference, (True, None)),
    "reference, frozen": (reference, (True, 250)),
    "reference": (reference, (False, 250)),
}


EMPTY_AT_FIRST = ("fast, first time", "fast, compiled", "standard, compiled")
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "ADAPTIVE_SMOOTHING_CACHE")


def in_new_process(name: str, case: Case, caches: str) -> dict[str, Any]:
    """Run an attack in a process that has computed nothing before, with its caches on disk in a folder."""
    function, arguments = ATTACKS[name]
    with tempfile.TemporaryDirectory() as empty, patch.dict(os.environ):
        folder = empty if name in EMPTY_AT_FIRST else caches
        os.environ |= {variable: f"{folder}/{variable}" for variable in CACHES}
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(function, case, *arguments).result()


def fill_caches(case: Case, caches: str) -> None:
    """Fill the caches on disk by an attack on few images."""
    print("filling the caches on disk ...", flush=True)
    in_new_process("fast", replace(case, images=64), caches)


def compared(runs: dict[str, dict[str, Any]], images: int) -> dict[str, dict[str, Any]]:
    """Return the numbers of each attack, and for ours also the differences from the reference."""
    robust = {name: set(run["robust"]) for name, run in runs.items()}
    theirs = next((name for name in ("reference", *runs) if name in runs and name.startswith("reference")), None)
    rows = {}
    for name, run in runs.items():
        row = {key: value for key, value in run.items() if key != "robust"}
        row |= {key: row[key] / images for key in ("forwards", "backwards")}
        row["robust accuracy"] = len(robust[name]) / images
        if theirs is not None and not name.startswith("reference"):
            row["only ours broke"] = len(robust[theirs] - robust[name])
            row["only theirs broke"] = len(robust[name] - robust[theirs])
            row["times as fast"] = runs[theirs]["seconds"] / row["seconds"]
            row["times as fast, cold"] = runs[theirs]["cold"] / row["cold"]
        rows[name] = row
    return rows


def show(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        cells = [f"{key} {value:.4g}" for key, value in row.items()]
        print(f"{name:30} {'   '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="MODEL, or G H with --alpha")
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--weights", help="the weights of a model of foreign_models.py: a file, or the name of ours")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--data-root")
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], choices=ATTACKS, help="attacks to run; default all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    case = Case(
        tuple(args.models), args.alpha, args.weights, args.images, args.data, args.data_root, args.split, args.device
    )
    data = case.load_data()
    facts = {"models": case.load_model()[1], "data": data.name, "fingerprint": data.fingerprint(), "images": len(data)}
    runs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as caches:
        if case.device != "cpu":
            fill_caches(case, caches)
        for name in args.only or ATTACKS:
            print(name, "...", flush=True)
            runs[name] = in_new_process(name, case, caches)
            print(f"  {runs[name]['seconds']:.1f} s, {len(runs[name]['robust'])} of {len(data)} robust", flush=True)
            rows = compared(runs, len(data))
            # Written after each attack, in case the next one fails.
            if args.out:
                write_json(args.out, {"rows": rows, "facts": {**facts, **environment(args.device)}})
    show(rows)


if __name__ == "__main__":
    main()
