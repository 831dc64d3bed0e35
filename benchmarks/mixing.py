"""Cost of a mixing network: minutes to train it, and images per second of the mixture compared with g and h.

    python benchmarks/mixing.py G H --recipe recipes/mixing-c.toml --data-root DATA --out benchmarks/results/mixing.json

The overhead is the time of a mixture relative to g and h run one after the other on the same images: the median over
rounds that time both. Training is timed end to end: data transfer, compilation, epochs, batch-norm statistics.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from clock import clocked
from torch import Tensor, nn

from adaptive_smoothing.data import datasets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, training_facts
from adaptive_smoothing.training.options import TrainingOptions

ROUNDS = 9


def overhead(g: nn.Module, h: nn.Module, images: Tensor, *, half: bool, compiled: bool) -> list[dict[str, Any]]:
    """Return images per second of g and h and of mixtures of them, timed in the same rounds."""
    device = images.device

    def prepared(model: nn.Module) -> Callable[[], object]:
        called = torch.compile(model) if compiled else model

        def run() -> object:
            with torch.no_grad(), trusted_images(), torch.autocast(device.type, torch.bfloat16, enabled=half):
                return called(images)

        return run

    alone = [prepared(model) for model in (g, h)]
    mixtures = {
        "one alpha": prepared(MixedClassifier(g, h, 0.85)),
        "mixing network": prepared(MixedClassifier(g, h, MixingNetwork.between(g, h))),
        "fine-tuned tail": prepared(MixedClassifier(g, h, FineTunedTail.of(h))),
    }
    for run in (*alone, *mixtures.values()):
        run()
    rows = []
    for name, run in mixtures.items():
        rounds = [(clocked(lambda: [base() for base in alone])[1], clocked(run)[1]) for _ in range(ROUNDS)]
        ratio = statistics.median(mixed / both for both, mixed in rounds)
        rows.append(
            {
                "mixture": name,
                "arithmetic": "bfloat16" if half else "float32",
                "compiled": compiled,
                "g_and_h_images_per_second": round(len(images) / min(both for both, _ in rounds)),
                "mixture_images_per_second": round(len(images) / min(mixed for _, mixed in rounds)),
                "overhead": round(ratio - 1, 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--recipe", type=Path, help="train this recipe as well")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--keep", type=Path, help="folder for the trained mixture")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    g, h = (zoo.load(name, device=device) for name in (options.standard, options.robust))
    images = torch.rand(options.images, 3, 32, 32, device=device)
    settings = [(False, False), (True, False), (True, True)] if device.type == "cuda" else [(False, False)]
    if device.type == "cuda":
        images = images.contiguous(memory_format=torch.channels_last)
    rows = [row for half, compiled in settings for row in overhead(g, h, images, half=half, compiled=compiled)]
    found: dict[str, Any] = {"models": [options.standard, options.robust], "overhead": rows}
    if options.recipe:
        recipe = read_toml(options.recipe, MixingRecipe, options.changes)
        splits = ("val" if options.data == "builtin" else "train", "val")  # to try it without CIFAR-10
        train, val = (datasets.load(options.data, split, root=options.data_root) for split in splits)
        with tempfile.TemporaryDirectory() as folder:
            training = TrainingOptions(Path(folder), device=str(device), quiet=True)
            trained, took = clocked(lambda: fit_adaptive(g, h, train, val, recipe, training))
        if options.keep:
            trained.save_pretrained(options.keep, card=training_facts(recipe, len(train), took, device))
        found["training"] = {"recipe": recipe.name, "images": len(train), "minutes": round(took / 60, 2)}
    write_json(options.out, found | environment(device))
    for row in rows:
        print({key: row[key] for key in ("mixture", "arithmetic", "compiled", "mixture_images_per_second", "overhead")})
    print(found.get("training", ""))


if __name__ == "__main__":
    main()
