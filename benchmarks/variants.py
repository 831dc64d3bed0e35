"""Train variants of a recipe one after the other, and compare them on validation images.

    python benchmarks/variants.py recipes/resnet18-dajat.toml --data-root DIR --runs runs --out variants.jsonl \\
        "plain" "less decay: optimizer.weight_decay=1e-4" "longer: optimizer.epochs=200 optimizer.lr=0.1"

Each variant is a name and the keys of the recipe that it changes; --set changes a key of all of them. It is trained in
a folder of its own below --runs, and continued there if the command runs again with the same keys. --averages gives
further decays of the moving average of the weights: each is a variant of its own, `optimizer.ema`, that needs no
training of its own. --shared trains the first epochs once, with the recipe and --set, and each variant continues from
there. If its keys have no effect before, such as weight perturbation after a warm-up, its model is that of a whole
training.

A line of --out has the recipe, the accuracies on all validation images (clean and PGD-20), the robust accuracy under
`fast` on the first --images of them, and the last epoch of the log. --seconds starts no training that would take longer
than the time left, judged by the one before. No test image is used.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
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
from adaptive_smoothing.training import checkpoints
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

    def begin_from(self, checkpoint: Path) -> None:
        """Continue from the checkpoint of another recipe with the same number of steps."""
        tensors, facts = checkpoints.load(checkpoint)
        for key in ("epochs", "batch_size"):
            ours, theirs = getattr(self.recipe.optimizer, key), facts["recipe"]["optimizer"][key]
            if ours != theirs:
                raise ValueError(f"expected optimizer.{key} = {theirs} as in {checkpoint}, got {ours}")
        self._load(tensors)
        self.step, self.seconds = facts["step"], facts["seconds"]

    def models(self) -> Iterator[tuple[Recipe, nn.Module]]:
        """Train to the end, and yield the model of each average with the recipe that makes it."""
        yield self.recipe, self.run()
        for decay, average in self.averages.items():
            average.copy_to_model()
            self.measure_batch_norm(self.steps_per_epoch)
            name, optimizer = f"{self.recipe.name}-ema-{decay}", replace(self.recipe.optimizer, ema=decay)
            yield replace(self.recipe, name=name, optimizer=optimizer), self.classifier.eval()


class FirstEpochs(SeveralAverages):
    """The first epochs of a training, which end with a checkpoint: `SeveralAverages` can begin from it."""

    def __init__(self, *arguments: Any, epochs: int) -> None:
        super().__init__(*arguments)
        self.end = epochs * self.steps_per_epoch

    @property
    def finished(self) -> bool:
        return self.step >= self.end

    def finish(self) -> nn.Module:
        return self.classifier


def measure(trainer: SeveralAverages, images: int, start: Path | None = None) -> Iterator[dict[str, Any]]:
    """Train a variant, or continue it, store its models, and yield the figures of each.

    Args:
        images: validation images for `fast`.
        start: the checkpoint of another recipe from which the variant begins.
    """
    folder = trainer.options.folder
    if not trainer.resume() and start:
        trainer.begin_from(start)
    recipes = []
    for recipe, model in trainer.models():
        zoo.save(model, folder, recipe.name, trainer.card() | {"recipe": asdict(recipe)})
        recipes.append(recipe)
    if trainer.compiled:
        torch.compiler.reset()  # its CUDA graphs would keep their memory
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    kept = {key: trainer.card()[key] for key in ("seconds", "device", "code")}
    for recipe in recipes:
        model = zoo.load(str(folder / f"{recipe.name}.safetensors"), device=trainer.options.device)
        found = accuracies(model, recipe, trainer.val_data, images)
        yield {"name": recipe.name, "figures": found, **kept, "last": last, "recipe": asdict(recipe)}


def accuracies(model: nn.Module, recipe: Recipe, val: ImageData, images: int) -> dict[str, Any]:
    """Return clean and PGD-20 accuracy on validation images, and that under `fast` on the first of them."""
    found: dict[str, Any] = dict(figures(model, recipe, val, lambda seen: None))
    few = val.take(slice(images))
    found["fast"] = evaluate(model, few, "fast", Linf(8 / 255)).robust if len(few) else None
    return found | {"fast images": len(few)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("variants", nargs="+", metavar="NAME[: KEY=VALUE ...]")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--set", dest="change", action="append", default=[], help="a key of every variant")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--images", type=int, default=2000, help="validation images for `fast`; 0: none")
    parser.add_argument("--averages", type=float, nargs="+", default=[], metavar="DECAY")
    parser.add_argument("--shared", type=int, default=0, metavar="EPOCHS", help="first epochs that are trained once")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = [variant.partition(":") for variant in arguments.variants]
    changes = {name.replace(" ", "-"): keys.strip() for name, _, keys in parts}
    if len(changes) < len(parts):
        parser.error("expected a name of its own for each variant")

    def variant(name: str, keys: str = "") -> Recipe:
        return replace(read_toml(arguments.recipe, Recipe, [*arguments.change, *keys.split()]), name=name)

    recipes = [variant(name, keys) for name, keys in changes.items()]
    begin, last = time.perf_counter(), 0.0

    def training(kind: Callable[..., SeveralAverages], recipe: Recipe, folder: str) -> SeveralAverages:
        train, val = (datasets.load(recipe.data.name, split, root=arguments.data_root) for split in ("train", "val"))
        path = arguments.runs / folder
        options = TrainingOptions(path, device=arguments.device, quiet=True, tensorboard=False, resume=True)
        return kind(recipe, train, val, options, arguments.averages)

    start, shared = None, {}
    if arguments.shared:
        kind, name = partial(FirstEpochs, epochs=arguments.shared), f"first-{arguments.shared}-epochs"
        first = training(kind, variant(name), name)
        first.resume()
        first.run()
        torch.compiler.reset()
        start, shared = first.options.checkpoint, {"shared epochs": arguments.shared}
        print(json.dumps(shared | {"seconds": round(first.seconds)}), flush=True)
    for recipe in recipes:
        started = time.perf_counter()
        if started - begin + last > arguments.seconds:
            print(f"no time for {recipe.name}", flush=True)
            continue
        trainer = training(SeveralAverages, recipe, recipe.name)
        for row in measure(trainer, arguments.images, start):
            last = time.perf_counter() - started
            shown = {"name": row["name"], **row["figures"], "changes": changes[recipe.name], "seconds": round(last)}
            print(json.dumps(shown), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row | shared) + "\n")


if __name__ == "__main__":
    main()
