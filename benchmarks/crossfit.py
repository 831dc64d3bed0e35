"""Is a mixer better if it is trained on images that g and h have not seen? (cross-fitting)

    python benchmarks/crossfit.py recipes/resnet18-standard.toml recipes/resnet18-robust.toml --data-root DIR \\
        --runs runs/crossfit --out results/training/crossfit.json --set optimizer.epochs=100

The training images are divided into two halves. g and h are trained on the first half. A mixer is then trained on the
first half, which g and h have seen, another one on the second half, which they have not. Both are attacked with `fast`
on the first --images validation images, after they were set to the same clean accuracy on the others. `gap` has the
accuracies of g and h on the first images of each half. If the recipe of h has a helper, that is g. The interval covers
the choice of images, not another training. An interrupted command continues in the folder --runs.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.loading import facts_of
from adaptive_smoothing.models import zoo
from adaptive_smoothing.results import difference, write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.settings.tables import changed, read_toml
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.mixing.recipe import default_recipe
from adaptive_smoothing.training.mixing.train import fit_adaptive
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import Trainer
from adaptive_smoothing.tuning.tune import tune

THREAT = Linf(8 / 255)


def halves(data: ImageData) -> tuple[ImageData, ImageData]:
    """Return the images at even and at odd positions."""
    even = torch.arange(len(data)) % 2 == 0
    return data.take(even), data.take(~even)


def trained(recipe: Recipe, train: ImageData, val: ImageData, options: TrainingOptions) -> nn.Module:
    """Train a base classifier, or load it if that was done before."""
    path = options.folder / f"{recipe.name}.safetensors"
    trainer = Trainer(recipe, train, val, options)
    trainer.resume()  # an error if the folder has a training with another recipe
    if not (trainer.finished and path.exists()):
        zoo.save(trainer.run(), options.folder, recipe.name, trainer.card())
        torch._dynamo.reset()
    return zoo.load(str(path), device=options.device)


def accuracies(model: nn.Module, data: ImageData, attack: Cascade) -> dict[str, float]:
    result = evaluate(model, data, attack)
    return {"clean": result.clean, "robust": result.robust}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard", type=Path)
    parser.add_argument("robust", type=Path)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/crossfit"))
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--gap-images", type=int, default=1000)
    parser.add_argument("--clean-accuracy", type=float, default=0.88, help="of the mixtures, on validation images")
    parser.add_argument("--set", dest="change", action="append", default=[], help="a key of the recipe of h")
    parser.add_argument("--set-mixer", dest="mixer", action="append", default=[], help="a key of that of the mixer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    def options(name: str) -> TrainingOptions:
        folder = arguments.runs / name
        return TrainingOptions(folder, device=arguments.device, quiet=True, tensorboard=False, resume=True)

    train, val = (datasets.load("cifar10", split, root=arguments.data_root) for split in ("train", "val"))
    first, second = halves(train)
    g = trained(read_toml(arguments.standard, Recipe, []), first, val, options("g"))
    recipe = read_toml(arguments.robust, Recipe, arguments.change)
    if recipe.method.helper:
        recipe = replace(recipe, method=replace(recipe.method, helper=facts_of(g)["name"]))
    h = trained(recipe, first, val, options("h"))
    attack = replace(preset("fast", THREAT), audit=())
    attacked, others = val.take(slice(arguments.images)), val.take(slice(arguments.images, None))
    few = {"seen": first.take(slice(arguments.gap_images)), "unseen": second.take(slice(arguments.gap_images))}
    bases = {"g": g, "h": h}
    found: dict[str, Any] = {
        "models": {name: facts_of(model) for name, model in bases.items()},
        "gap": {
            name: {half: accuracies(model, data, attack) for half, data in few.items()} for name, model in bases.items()
        },
        "h": accuracies(h, attacked, attack),
        "mixtures": {},
    }
    print(json.dumps(found), flush=True)
    correct = {}
    for name, data in (("seen", first), ("unseen", second)):
        start = time.perf_counter()
        mixing = changed(default_recipe(THREAT, name, clean_accuracy=arguments.clean_accuracy), arguments.mixer)
        mixed = fit_adaptive(g, h, data, others, mixing, options(name))
        result = evaluate(tune(mixed, others, clean_accuracy=arguments.clean_accuracy), attacked, attack)
        correct[name] = result.robust_correct.numpy()
        row = {"clean": result.clean, "robust": result.robust, "seconds": round(time.perf_counter() - start)}
        found["mixtures"][name] = row
        print(json.dumps({name: row}), flush=True)
    found["unseen ahead"], found["give or take"] = difference(correct["unseen"], correct["seen"])
    print(json.dumps({key: found[key] for key in ("unseen ahead", "give or take")}), flush=True)
    if arguments.out:
        facts = {"images": len(attacked), "clean accuracy": arguments.clean_accuracy, "training": len(first)}
        facts |= {"set": arguments.change, "set mixer": arguments.mixer}
        write_json(arguments.out, {**facts, **found, **environment(arguments.device)})


if __name__ == "__main__":
    main()
