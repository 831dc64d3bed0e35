"""Average the weights of models that began as one training, and measure the result on validation images.

    python benchmarks/soup.py recipes/resnet18-hat.toml runs/plain/plain.safetensors runs/awp/awp.safetensors \\
        --data-root DIR --name soup --runs runs --out variants.jsonl

The average is a "model soup" (Wortsman et al. 2022). The models are variants that `variants.py --shared` has trained.
The recipe, with --set, is that of one of them: it gives the training examples on which the batch-norm statistics of the
average are measured. A line of --out has the sha256 of the models, and the accuracies as in `variants.py`. No test
image is used.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from variants import accuracies

from adaptive_smoothing.data import datasets
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.weight_files import file_sha256
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import Trainer


def soup(trainer: Trainer, paths: list[Path]) -> dict[str, Any]:
    """Store the average of models, with batch-norm statistics of its own; return the card."""
    models = [dict(zoo.load(path, device=trainer.device).named_parameters()) for path in paths]
    with torch.no_grad():
        for name, value in trainer.classifier.named_parameters():
            value.copy_(torch.stack([model[name] for model in models]).mean(0))
    trainer.measure_batch_norm(trainer.steps_per_epoch)
    card = trainer.card() | {"average of": [file_sha256(path) for path in paths]}
    zoo.save(trainer.classifier.eval(), trainer.options.folder, trainer.recipe.name, card)
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--name", default="soup")
    parser.add_argument("--set", dest="change", action="append", default=[], help="a key of the recipe")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--images", type=int, default=2000, help="validation images for `fast`; 0: none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recipe = replace(read_toml(arguments.recipe, Recipe, arguments.change), name=arguments.name)
    train, val = (datasets.load(recipe.data.name, split, root=arguments.data_root) for split in ("train", "val"))
    folder = arguments.runs / arguments.name
    options = TrainingOptions(folder, device=arguments.device, compiled=False, quiet=True, tensorboard=False)
    card = soup(Trainer(recipe, train, val, options), arguments.models)
    model = zoo.load(str(folder / f"{recipe.name}.safetensors"), device=arguments.device)
    row = {"name": recipe.name, "figures": accuracies(model, recipe, val, arguments.images), **card}
    print(json.dumps({"name": row["name"], **row["figures"]}), flush=True)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
