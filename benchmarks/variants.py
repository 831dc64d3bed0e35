"""Train variants of a recipe one after the other, and compare them on validation images.

    python benchmarks/variants.py recipes/resnet18-dajat.toml --data-root DIR --runs runs --out variants.jsonl \\
        "plain" "less decay: optimizer.weight_decay=1e-4" "longer: optimizer.epochs=200 optimizer.lr=0.1"

Each variant is a name and the keys of the recipe that it changes. It is trained in a folder of its own below --runs,
and continued there if the command runs again with the same keys. --averages gives further decays of the moving average
of the weights: each is a variant of its own, `optimizer.ema`, that needs no training of its own. A line of --out has
the recipe, the accuracies on all validation images (clean and PGD-20), the robust accuracy under `fast` on the first
--images of them, and the last epoch of the log. --seconds starts no training that would take longer than the time left,
judged by the one before. No test image is used.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.models import zoo
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import Trainer, figures
from adaptive_smoothing.training.weights import MovingAverage


class SeveralAverages(Trainer):
    """A training with moving averages of several decays."""

    def __init__(
        self, recipe: Recipe, train: ImageData, val: ImageData, options: TrainingOptions, decays: list[float]
    ) -> None:
        super().__init__(recipe, train, val, options)
        self.averages = {decay: MovingAverage(self.model, decay) for decay in decays}

    def descend(self, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        result = super().descend(*arguments, **options)
        for average in self.averages.values():
            average.update(self.step)
        return result

    def state(self) -> dict[str, Tensor]:
        values = {
            f"{decay}/{number}": value
            for decay, average in self.averages.items()
            for number, value in enumerate(average.values)
        }
        return {**super().state(), **values}

    def models(self) -> Iterator[tuple[Recipe, nn.Module]]:
        """Train to the end, and yield the model of each average with the recipe that makes it."""
        yield self.recipe, self.run()
        for decay, average in self.averages.items():
            average.copy_to_model()
            self.measure_batch_norm(self.steps_per_epoch)
            name, optimizer = f"{self.recipe.name}-ema-{decay}", replace(self.recipe.optimizer, ema=decay)
            yield replace(self.recipe, name=name, optimizer=optimizer), self.classifier.eval()


def measure(trainer: SeveralAverages, val: ImageData, images: int) -> Iterator[dict[str, Any]]:
    """Train a variant, or continue it, store its models, and yield the figures of each."""
    folder = trainer.options.folder
    trainer.resume()
    recipes = []
    for recipe, model in trainer.models():
        zoo.save(model, folder, recipe.name, trainer.card() | {"recipe": asdict(recipe)})
        recipes.append(recipe)
    if trainer.compiled:
        torch.compiler.reset()  # its CUDA graphs would keep their memory
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    kept = {key: trainer.card()[key] for key in ("seconds", "device", "code")}
    few = val.take(slice(images))
    for recipe in recipes:
        model = zoo.load(str(folder / f"{recipe.name}.safetensors"), device=trainer.options.device)
        found: dict[str, Any] = dict(figures(model, recipe, val, lambda seen: None))
        found["fast"] = evaluate(model, few, "fast", Linf(8 / 255)).robust if len(few) else None
        found["fast images"] = len(few)
        yield {"name": recipe.name, "figures": found, **kept, "last": last, "recipe": asdict(recipe)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("variants", nargs="+", metavar="NAME[: KEY=VALUE ...]")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--images", type=int, default=2000, help="validation images for `fast`; 0: none")
    parser.add_argument("--averages", type=float, nargs="+", default=[], metavar="DECAY")
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
        train, val = (datasets.load(recipe.data.name, split, root=arguments.data_root) for split in ("train", "val"))
        options = TrainingOptions(
            arguments.runs / recipe.name, device=arguments.device, quiet=True, tensorboard=False, resume=True
        )
        torch._dynamo.reset()
        trainer = SeveralAverages(recipe, train, val, options, arguments.averages)
        for row in measure(trainer, val, arguments.images):
            last = time.perf_counter() - started
            shown = {"name": row["name"], **row["figures"], "changes": changes.strip(), "seconds": round(last)}
            print(json.dumps(shown), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
