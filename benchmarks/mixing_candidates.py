"""Which mixture of two models stands most often at a wanted clean accuracy, on validation images.

    python benchmarks/mixing_candidates.py G H --data-root DATA --clean 0.9 --out results/candidates/mixing.json \\
        fixed "fixed standard_scale=1" nonlinear "recipes/mixing.toml loss.attacked=0.25 data.cutout=0"

A candidate is `fixed`, `nonlinear`, or a recipe, with changes. Each is tuned to the wanted accuracies on all validation
images and attacked with the preset `fast` on the first so many of them; nothing here sees the test set. The file is
written after each candidate. `--keep FOLDER` keeps the trained mixtures.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.attacks.autoattack import FastAttack
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.judging import evaluate
from adaptive_smoothing.fitting import STANDARD_SCALE, fit_adaptive, fit_fixed, fit_nonlinear
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import environment
from adaptive_smoothing.results import write_json
from adaptive_smoothing.settings import read_toml
from adaptive_smoothing.threat import Linf, Threat
from adaptive_smoothing.training.mixing_recipe import MixingRecipe
from adaptive_smoothing.tuning import dial_accuracy, turned


def robust_accuracy(mixed: MixedClassifier, data: ImageData, threat: Threat) -> dict[str, Any]:
    verdict = evaluate(mixed, data, replace(FastAttack(threat), audit=()), with_alarms=False)
    took = {name: took for name, took, _ in verdict.waterfall}
    return {"robust": verdict.robust, "clean_there": verdict.clean, "took": took}


def at_targets(
    mixed: MixedClassifier, val: ImageData, images: int, targets: list[float], threat: Threat
) -> list[dict[str, Any]]:
    """At each wanted clean accuracy: where the dial is, and what stands."""
    accuracy = dial_accuracy(mixed, val)
    rows = []
    for target in targets:
        setting = accuracy.largest(target)
        found = robust_accuracy(turned(mixed, setting), val.take(slice(images)), threat)
        rows.append({"wanted": target, "clean": accuracy(setting), accuracy.dial: setting, **found})
    return rows


def candidate(
    name: str, g: nn.Module, h: nn.Module, train: ImageData, val: ImageData, options: argparse.Namespace, folder: Path
) -> list[dict[str, Any]]:
    what, *changes = name.split()
    threat, device = Linf(8 / 255), options.device
    if what == "fixed":
        scale = float(changes[0].partition("=")[2]) if changes else STANDARD_SCALE
        return at_targets(fit_fixed(g, h, standard_scale=scale), val, options.images, options.clean, threat)
    if what == "nonlinear":
        rows = []
        for target in options.clean:
            mixed, setting = fit_nonlinear(g, h, val, threat, clean_accuracy=target, attacked=options.images)
            found = robust_accuracy(mixed, val.take(slice(options.images)), threat)
            rows.append({"wanted": target, **vars(setting), **found})
        return rows
    recipe = read_toml(what, MixingRecipe, changes)
    mixed = fit_adaptive(g, h, train, val, recipe, folder=folder, device=device, quiet=True)
    if options.keep:
        mixed.save_pretrained(options.keep / folder.name, card={"candidate": name})
    return at_targets(mixed, val, options.images, options.clean, threat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("candidates", nargs="+")
    parser.add_argument("--clean", type=float, nargs="+", default=[0.9])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/candidates"))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--until", type=float, default=float("inf"), help="start no candidate after so many seconds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    g, h = (zoo.load(name, device=options.device) for name in (options.standard, options.robust))
    splits = ("train", "val") if options.data != "builtin" else ("val", "val")
    train, val = (datasets.load(options.data, split, root=options.data_root).to(options.device) for split in splits)
    facts = {"models": [options.standard, options.robust], "images": options.images, **environment(options.device)}
    results: list[dict[str, Any]] = []
    for number, name in enumerate(options.candidates):
        if time.perf_counter() - began > options.until:
            print(f"no time for {name}", flush=True)
            continue
        start = time.perf_counter()
        rows = candidate(name, g, h, train, val, options, options.runs / f"{options.out.stem}-{number}")
        results.append({"candidate": name, "seconds": round(time.perf_counter() - start, 1), "at": rows})
        write_json(options.out, facts | {"candidates": results})
        said = ", ".join(f"{row['clean']:.4f} clean {row['robust']:.4f} robust" for row in rows)
        print(f"{time.perf_counter() - began:5.0f} s  {name}: {said}", flush=True)


if __name__ == "__main__":
    main()
