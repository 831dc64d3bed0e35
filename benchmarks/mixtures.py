"""Robust accuracy of mixtures of two models at requested clean accuracies.

    python benchmarks/mixtures.py G H --data-root DATA --clean 0.9 --out results/mixtures/candidates \\
        fixed "best fixed: fixed search" nonlinear "less attacked: default loss.attacked=0.25" \\
        "smaller scale: resnet18-mixed scale=1"

A mixture is `fixed`, `nonlinear`, a recipe to train (a file, or `default`), or a folder that `mix` wrote, followed by
changes and preceded by an optional name with a colon. `search` also searches for the best scales. Each mixture is tuned
to the clean accuracies on validation images and attacked with presets on the first images of a split: validation images
to choose, test images to report. `--preset A:10000 C:1000` sets the number of images of each preset; robustness to all
presets is counted on the images that all of them attack.
Without `--clean` the setting of a folder is not changed. `result.json` and `rows.npz` in the folder `--out` are updated
after each mixture, and what they have is not measured again. `--keep FOLDER` stores the mixtures that were trained.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import NUMBERS, MixedClassifier
from adaptive_smoothing.mixing.transforms import LogitTransform
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.origin import origin
from adaptive_smoothing.results import read_json, read_rows, write_json, write_rows
from adaptive_smoothing.runs.folder import RESULT, ROWS, environment
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.threat import parse_threat
from adaptive_smoothing.training.mixing.recipe import DEFAULT, MixingRecipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, training_facts
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.tuning.curves import accuracy_curve, current_setting
from adaptive_smoothing.tuning.nonlinear import ATTACKED, fit_nonlinear
from adaptive_smoothing.tuning.tune import STANDARD_SCALE, tune

SEARCH = "search"
# In these an earlier run must agree to be continued.
SETTINGS = ("threat", "split", "preset", "data", "images", "alarms")


class Bench:
    """Two models, the images for tuning and for the evaluation, and the attacks with their numbers of images."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.threat = options, parse_threat(options.threat)
        self.g, self.h = (zoo.load(name, device=options.device) for name in (options.standard, options.robust))
        self.train, self.val, measured = (
            datasets.load(options.data, split, root=options.data_root)
            for split in ("train" if options.data != "builtin" else "val", "val", options.split)
        )
        self.attacked = min(ATTACKED, options.images)
        self.attacks = [self._attack(asked) for asked in options.preset]
        self.measured = measured.take(slice(options.predicted)).to(options.device)

    def _attack(self, asked: str) -> tuple[Cascade, int]:
        name, _, images = asked.partition(":")
        # An audit would double the time and is not needed to compare mixtures.
        return replace(preset(name, self.threat), name=name, audit=()), int(images or self.options.images)

    def mixtures(
        self, what: str, changes: list[str], targets: list[float | None], folder: Path
    ) -> Iterator[tuple[dict[str, Any], MixedClassifier]]:
        """Yield the mixture at each clean accuracy (None: as it is), with facts about it."""
        if what == "nonlinear":
            for target in targets:
                mixed = fit_nonlinear(
                    self.g, self.h, self.val, self.threat, clean_accuracy=target, attacked=self.attacked
                )
                yield {"wanted": target, **mixed.card["transform"]}, mixed
            return
        mixed = self._made(what, [change for change in changes if change != SEARCH], folder)
        searched = {"threat": self.threat, "attacked": self.attacked, "log": print} if SEARCH in changes else {}
        for target in targets:
            tuned = tune(mixed, self.val, clean_accuracy=target, **searched) if target else mixed
            yield ({"wanted": target} if target else {}), tuned

    def _made(self, what: str, changes: list[str], folder: Path) -> MixedClassifier:
        if what == "fixed":
            return MixedClassifier(self.g, self.h, 0.5, **{"standard_scale": STANDARD_SCALE} | numbers(changes))
        if pretrained.exists(what):
            mixed = MixedClassifier.from_pretrained(what, device=self.options.device)
            return mixed.with_sigmoid(**numbers(changes), shift=0.0) if changes else mixed
        recipe = read_toml(DEFAULT if what == "default" else what, MixingRecipe, changes)
        began = time.perf_counter()
        compiled = False if self.options.eager else None
        training = TrainingOptions(folder, device=self.options.device, compiled=compiled, quiet=True, resume=True)
        mixed = fit_adaptive(self.g, self.h, self.train, self.val, recipe, training)
        if self.options.keep:
            card = training_facts(recipe, len(self.train), time.perf_counter() - began, self.options.device)
            mixed.save_pretrained(self.options.keep / folder.name, card=card)
        return mixed

    def facts(self, mixed: MixedClassifier) -> dict[str, Any]:
        """Return the clean accuracy on validation images, the numbers and the transforms of a mixture."""
        names = NUMBERS if isinstance(mixed.alpha, nn.Module) else ("alpha", *NUMBERS)
        clean = accuracy_curve(mixed, self.val)(current_setting(mixed))
        bases = {"g": mixed.standard, "h": mixed.robust}
        transforms = {name: base.options for name, base in bases.items() if isinstance(base, LogitTransform)}
        numbers = {name: getattr(mixed, name).tolist() for name in names}
        return {"clean_val": clean, "numbers": numbers, "transforms": transforms}

    def measure(self, mixed: MixedClassifier) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return clean accuracy, robust accuracy to each attack and to all of them; and one row per image."""
        shared = min(images for _, images in self.attacks)
        robust = torch.ones(shared, dtype=torch.bool)
        found: dict[str, Any] = {"attacks": {}}
        columns: dict[str, np.ndarray] = {}
        for attack, images in self.attacks:
            data = self.measured.take(slice(images))
            verdict = evaluate(mixed, data, attack, options=EvaluationOptions(alarms=self.options.alarms))
            robust &= verdict.robust_correct[:shared]
            took = {name: count for name, count, _ in verdict.waterfall if count}
            found["attacks"][attack.name] = {"robust": verdict.robust, "images": len(data), "took": took}
            if verdict.alarms is not None:
                found["attacks"][attack.name]["alarms"] = [alarm.name for alarm in verdict.alarms]
            columns[attack.name] = verdict.robust_correct.numpy()
        columns["clean"] = evaluate(mixed, self.measured).clean_correct.numpy()
        whole = {"clean": columns["clean"].mean().item(), "stands_all": robust.float().mean().item(), "of": shared}
        return found | whole, columns


def earlier(folder: Path, facts: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return the points and the rows that an earlier run with the same models and settings left in the folder."""
    if not (folder / RESULT).exists():
        return [], {}
    found = read_json(folder / RESULT)
    if any(found[key] != facts[key] for key in ("models", "settings", "images")):
        raise SystemExit(f"expected the models and settings of {folder / RESULT}, got others: pass another --out")
    return found["mixtures"], read_rows(folder / ROWS)


def not_measured(
    targets: list[float | None], results: list[dict[str, Any]], name: str, made_from: str
) -> list[float | None]:
    """Return the clean accuracies at which a mixture was not measured."""
    same = [result for result in results if result["mixture"] == name]
    if any(result["made from"] != made_from for result in same):
        raise SystemExit(f"expected {name} to be made from {made_from}, got another mixture in --out: use another name")
    return [target for target in targets if target not in [result.get("wanted") for result in same]]


def numbers(changes: list[str]) -> dict[str, float]:
    return {name: float(value) for name, value in (change.split("=") for change in changes)}


def named(mixture: str) -> tuple[str, str, list[str]]:
    """Split `name: what changes...` into its parts."""
    name, _, rest = mixture.rpartition(": ")
    what, *changes = rest.split()
    return name or mixture, what, changes


def described(name: str, model: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in (origin(model) or {"name": name}).items() if key in ("name", "sha256")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("mixtures", nargs="+")
    parser.add_argument("--clean", type=float, nargs="+", default=[])
    parser.add_argument("--preset", nargs="+", default=["fast"], help=f"of {', '.join(PRESETS)}, each with :IMAGES")
    parser.add_argument("--threat", default="Linf:8/255")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--predicted", type=int, help="clean accuracy on so many; default: all of the split")
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
    if not options.clean and any(named(mixture)[1] in ("fixed", "nonlinear") for mixture in options.mixtures):
        parser.error("expected --clean for fixed and nonlinear mixtures: only trained mixtures have a setting")
    began = time.perf_counter()
    bench = Bench(options)
    facts = {
        "models": {"g": described(options.standard, bench.g), "h": described(options.robust, bench.h)},
        "settings": {name: getattr(options, name) for name in SETTINGS},
        "images": len(bench.measured),
        **environment(options.device),
    }
    # Stored with each mixture, so that runs can be merged.
    when = {name: facts[name] for name in ("date", "adaptive-smoothing")}
    rows = {"index": bench.measured.index.cpu().numpy(), "label": bench.measured.labels.cpu().numpy()}
    results, stored = earlier(options.out, facts)
    rows |= stored
    for mixture in options.mixtures:
        name, what, changes = named(mixture)
        made_from = " ".join([what, *changes])
        if not (targets := not_measured(options.clean or [None], results, name, made_from)):
            print(f"measured before: {name}", flush=True)
            continue
        if time.perf_counter() - began > options.until:
            print(f"no time for {mixture}", flush=True)
            continue
        start, folder = time.perf_counter(), options.runs / f"{options.out.name}-{name.replace(' ', '-')}"
        for known, mixed in bench.mixtures(what, changes, targets, folder):
            made = time.perf_counter()
            known |= bench.facts(mixed)
            found, columns = bench.measure(mixed)
            took = {"seconds_made": round(made - start, 1), "seconds_attacked": round(time.perf_counter() - made, 1)}
            rows |= {f"{len(results)}.{column}": values for column, values in columns.items()}
            results.append({"mixture": name, "made from": made_from, **known, **found, **took, **when})
            write_rows(options.out / ROWS, rows)
            write_json(options.out / RESULT, facts | {"mixtures": results})
            robust = ", ".join(f"{name} {100 * attack['robust']:.2f}" for name, attack in found["attacks"].items())
            figures = f"clean {100 * found['clean']:.2f} (val {100 * known['clean_val']:.2f}), {robust}"
            done = f"{time.perf_counter() - began:5.0f} s ({took['seconds_made']:.0f} + {took['seconds_attacked']:.0f})"
            print(f"{done}  {name}: {figures}, all {100 * found['stands_all']:.2f}", flush=True)
            start = time.perf_counter()


if __name__ == "__main__":
    main()
