"""Train variants of a recipe one after the other, and compare them on validation images.

    python benchmarks/variants.py recipes/resnet18-dajat.toml --data-root DIR --runs runs --out variants.jsonl \\
        "plain" "less decay: optimizer.weight_decay=1e-4" "longer: optimizer.epochs=200 optimizer.lr=0.1"

Each variant is a name and the keys of the recipe that it changes. It is trained in a folder of its own below --runs,
and continued there if the command runs again with the same keys. A line of --out has the recipe, the accuracies on all
validation images (clean and PGD-20), the robust accuracy under `fast` on the first --images of them, and the last epoch
of the log. --seconds starts no training that would take longer than the time left, judged by the one before. No test
image is used.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.models import zoo
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import train_base


def measure(recipe: Recipe, options: TrainingOptions, data_root: Path, val: ImageData) -> dict[str, Any]:
    """Train a variant, or continue it, and return its figures."""
    card = train_base(recipe, options, root=data_root, test_images=0)
    model = zoo.load(str(options.folder / f"{recipe.name}.safetensors"), device=options.device)
    robust = evaluate(model, val, "fast", Linf(8 / 255)).robust if len(val) else None
    last = json.loads((options.folder / "log.jsonl").read_text().splitlines()[-1])
    figures = {**card["figures"]["val"], "fast": robust, "fast images": len(val)}
    kept = {key: card[key] for key in ("seconds", "device", "code")}
    return {"name": recipe.name, "figures": figures, **kept, "last": last, "recipe": asdict(recipe)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("variants", nargs="+", metavar="NAME[: KEY=VALUE ...]")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--images", type=int, default=2000, help="validation images for `fast`; 0: none")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    begin, last = time.perf_counter(), 0.0
    for variant in arguments.variants:
        name, _, changes = variant.partition(":")
        started = time.perf_counter()
        if started - begin + last > arguments.seconds:
            print(f"no time for {name}", flush=True)
            continue
        recipe = replace(read_toml(arguments.recipe, Recipe, changes.split()), name=name.replace(" ", "-"))
        val = datasets.load(recipe.data.name, "val", root=arguments.data_root).take(slice(arguments.images))
        options = TrainingOptions(
            arguments.runs / recipe.name, device=arguments.device, quiet=True, tensorboard=False, resume=True
        )
        torch._dynamo.reset()
        row = measure(recipe, options, arguments.data_root, val)
        last = time.perf_counter() - started
        print(json.dumps({"name": name, **row["figures"], "changes": changes, "seconds": round(last)}), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
