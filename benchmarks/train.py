"""Seconds per epoch of standard and adversarial training, eager and compiled, and of checkpoints and validation.

    python benchmarks/train.py --out benchmarks/results/train.json

Images are random, which does not affect speed. An epoch is 45,000 images. "first" is the first one, with compilation,
and "epoch" the median of the others. "checkpoint" is one save, "validation" one validation of the averaged weights, as
training does every `evaluate_every` epochs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from clock import clocked

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.results import write_json
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import Trainer

RECIPES = Path(__file__).parent.parent / "recipes"


def random_data(images: int) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    return ImageData(
        images=torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=generator),
        labels=torch.randint(0, 10, (images,), generator=generator),
        classes=tuple("0123456789"),
        name="random",
        index=torch.arange(images),
    )


def measure(recipe: Recipe, data: ImageData, device: str, compiled: bool, epochs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingOptions(Path(folder), device=device, compiled=compiled, quiet=True, tensorboard=False)
        trainer = Trainer(recipe, data, data.take(slice(5000)), options)

        def train(epoch: int) -> None:
            for batch in trainer.batches(epoch):
                trainer.train_step(batch)

        first, *others = (clocked(lambda epoch=epoch: train(epoch))[1] for epoch in range(epochs + 1))
        times = {"first": first, "epoch": statistics.median(others)}
        times |= {"checkpoint": clocked(trainer.save)[1], "validation": clocked(trainer.validate)[1]}
    return {name: round(value, 2) for name, value in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["resnet18-standard", "resnet18-at"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=45_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--set", dest="change", action="append", default=[])
    parser.add_argument("--only", choices=["eager", "compiled"])
    parser.add_argument("--autotune", action="store_true", help="let cuDNN choose its kernels by measuring them")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = arguments.autotune
    data = random_data(arguments.images)
    rows = []
    for name in arguments.recipes:
        for mode in ("eager", "compiled"):
            if arguments.only in (None, mode):
                recipe = read_toml(RECIPES / f"{name}.toml", Recipe, arguments.change)
                torch._dynamo.reset()
                row = measure(recipe, data, arguments.device, mode == "compiled", arguments.epochs)
                rows.append({"recipe": name, "mode": mode, "images": arguments.images, **row})
                print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        name = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else arguments.device
        write_json(arguments.out, {"device": name, "torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
