"""How many images mixtures of two models leave standing at wanted clean accuracies.

    python benchmarks/mixtures.py G H --data-root DATA --clean 0.9 --out results/mixtures/candidates \\
        fixed "fixed robust_scale=2" nonlinear "recipes/mixing.toml loss.attacked=0.25 data.cutout=0" \\
        "zoo/resnet18-mixed scale=2"

A mixture is `fixed`, `nonlinear`, a recipe (which is trained), or a folder that `mix` wrote, with changes. Each is
tuned to the wanted accuracies on the validation images, and attacked with presets on the first images of a split:
validation images to choose by, test images to report on. Without `--clean` a folder is attacked as it is. `result.json`
and `rows.npz` in the folder `--out` grow with each mixture; `--keep FOLDER` keeps those that were trained.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.attacks.adaptive import PRESETS, preset
from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.data import datasets
from adaptive_smoothing.dial_curves import dial_accuracy, turned
from adaptive_smoothing.evaluation.judging import evaluate
from adaptive_smoothing.evaluation.stored import RESULT, ROWS
from adaptive_smoothing.fitting import ATTACKED, fit_adaptive, fit_fixed, fit_nonlinear
from adaptive_smoothing.mixing import artifact
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import environment
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.settings import read_toml
from adaptive_smoothing.threat import parse_threat
from adaptive_smoothing.training.mixing_recipe import MixingRecipe


class Bench:
    """Two models, the images to choose by and those to measure on, and the attack."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.threat = options, parse_threat(options.threat)
        self.g, self.h = (zoo.load(name, device=options.device) for name in (options.standard, options.robust))
        self.train, self.val, measured = (
            datasets.load(options.data, split, root=options.data_root)
            for split in ("train" if options.data != "builtin" else "val", "val", options.split)
        )
        self.measured = measured.take(slice(options.images)).to(options.device)
        attacks = [preset(name, self.threat) for name in options.preset]
        # An audit is for somebody who trusts one number; here mixtures are compared.
        self.attacks: list[Cascade] = [replace(attack, audit=()) for attack in attacks]

    def mixtures(self, name: str, folder: Path) -> list[tuple[dict[str, Any], MixedClassifier]]:
        """The mixture of this name at each wanted clean accuracy, with what is known of it."""
        what, *changes = name.split()
        if what == "nonlinear":
            return [self._nonlinear(target) for target in self.options.clean]
        mixed = self._made(what, changes, folder)
        accuracy = dial_accuracy(mixed, self.val)
        if not self.options.clean:
            setting = (mixed.alpha_shift if accuracy.dial == "shift" else mixed.alpha).item()  # type: ignore[operator]
            return [({"clean_val": accuracy(setting), accuracy.dial: setting}, mixed)]
        settings = [accuracy.largest(target) for target in self.options.clean]
        return [
            ({"wanted": target, "clean_val": accuracy(setting), accuracy.dial: setting}, turned(mixed, setting))
            for target, setting in zip(self.options.clean, settings, strict=True)
        ]

    def _nonlinear(self, target: float) -> tuple[dict[str, Any], MixedClassifier]:
        attacked = min(ATTACKED, self.options.images)
        found = fit_nonlinear(self.g, self.h, self.val, self.threat, clean_accuracy=target, attacked=attacked)
        facts = vars(found[1])
        return {"wanted": target, "clean_val": facts["clean"], **facts}, found[0]

    def _made(self, what: str, changes: list[str], folder: Path) -> MixedClassifier:
        if what == "fixed":
            return fit_fixed(self.g, self.h, **numbers(changes))
        if artifact.exists(what):
            mixed = MixedClassifier.from_pretrained(what, device=self.options.device)
            return mixed.with_dial(**numbers(changes), shift=0.0) if changes else mixed
        recipe = read_toml(what, MixingRecipe, changes)
        options = {"folder": folder, "device": self.options.device, "quiet": True}
        options |= {"compiled": False} if self.options.eager else {}
        mixed = fit_adaptive(self.g, self.h, self.train, self.val, recipe, **options)
        if self.options.keep:
            kept = self.options.keep / folder.name
            mixed.save_pretrained(kept, card={"made from": " ".join([what, *changes])})
        return mixed

    def measure(self, mixed: MixedClassifier) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Clean accuracy and what stands each attack, and all of them; one row an image."""
        stands = torch.ones(len(self.measured), dtype=torch.bool)
        found: dict[str, Any] = {}
        columns: dict[str, np.ndarray] = {}
        for attack in self.attacks:
            verdict = evaluate(mixed, self.measured, attack, with_alarms=self.options.alarms)
            stands &= verdict.robust_correct
            waterfall = [(name, took) for name, took, _ in verdict.waterfall if took]
            alarms = [alarm.name for alarm in verdict.alarms or ()]
            found[attack.name] = {"robust": verdict.robust, "took": dict(waterfall), "alarms": alarms}
            columns[attack.name] = verdict.robust_correct.numpy()
            found["clean"], columns["clean"] = verdict.clean, verdict.clean_correct.numpy()
        return {**found, "union": stands.float().mean().item()}, columns


def numbers(changes: list[str]) -> dict[str, float]:
    return {name: float(value) for name, value in (change.split("=") for change in changes)}


def described(name: str, model: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in (zoo.origin(model) or {"name": name}).items() if key in ("name", "sha256")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("mixtures", nargs="+")
    parser.add_argument("--clean", type=float, nargs="+", default=[])
    parser.add_argument("--preset", nargs="+", default=["fast"], choices=list(PRESETS))
    parser.add_argument("--threat", default="Linf:8/255")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--alarms", action="store_true")
    parser.add_argument("--eager", action="store_true", help="train without compiling, which is faster for few epochs")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/mixtures"))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--until", type=float, default=float("inf"), help="start no mixture after so many seconds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    bench = Bench(options)
    facts = {
        "models": {"g": described(options.standard, bench.g), "h": described(options.robust, bench.h)},
        "settings": {name: getattr(options, name) for name in ("threat", "split", "preset", "data")},
        "images": len(bench.measured),
        **environment(options.device),
    }
    results: list[dict[str, Any]] = []
    rows = {"index": bench.measured.index.cpu().numpy(), "label": bench.measured.labels.cpu().numpy()}
    for number, name in enumerate(options.mixtures):
        if time.perf_counter() - began > options.until:
            print(f"no time for {name}", flush=True)
            continue
        start = time.perf_counter()
        for known, mixed in bench.mixtures(name, options.runs / f"{options.out.name}-{number}"):
            made = time.perf_counter()
            found, columns = bench.measure(mixed)
            took = {"seconds_made": round(made - start, 1), "seconds_attacked": round(time.perf_counter() - made, 1)}
            rows |= {f"{len(results)}.{column}": values for column, values in columns.items()}
            results.append({"mixture": name, **known, **found, **took})
            write_rows(options.out / ROWS, rows)
            write_json(options.out / RESULT, facts | {"mixtures": results})
            stood = ", ".join(f"{attack.name} {100 * found[attack.name]['robust']:.2f}" for attack in bench.attacks)
            figures = f"clean {100 * found['clean']:.2f} (val {100 * known['clean_val']:.2f}), {stood}"
            print(
                f"{time.perf_counter() - began:5.0f} s  {name}: {figures}, union {100 * found['union']:.2f}", flush=True
            )
            start = time.perf_counter()


if __name__ == "__main__":
    main()
