"""Train a base classifier from a recipe: load the data, train, evaluate, store the model with its card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.evaluation.verdict import Evaluation
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.cards import read_card
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.progress import Progress, RunProgress
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.base_trainer import Trainer
from adaptive_smoothing.training.loop import CHECKPOINT
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.version import code_version

# Samples of the smoothed classifier for the accuracy on a card. Certified accuracy is measured by `certify`.
SMOOTHING_SAMPLES = 16


def train_base(
    recipe: Recipe,
    folder: Path,
    *,
    device: str = "cpu",
    root: str | Path | None = None,
    download: bool = False,
    resume: bool = False,
    compiled: bool | None = None,
    quiet: bool = False,
    test_images: int | None = None,
) -> dict[str, Any]:
    """Train `recipe` into `folder`; return the card that is stored with the weights.

    Args:
        test_images: number of test images for the final evaluation; default: all. 0 is for a candidate that will be
            compared with others on validation images first.
    """
    train, val = (datasets.load(recipe.data.name, split, root=root, download=download) for split in ("train", "val"))
    if (folder / CHECKPOINT).exists() and not resume:
        raise FileExistsError(
            f"expected a folder without a run, got {folder}: continue with --resume, choose another --out, or delete it"
        )
    monitor = TrainingMonitor(folder, title=recipe.name, quiet=quiet)
    trainer = Trainer(recipe, train, val, folder, device=device, compiled=compiled, monitor=monitor)
    resumed = resume and trainer.resume()
    weights = folder / f"{recipe.name}.safetensors"
    if trainer.finished and weights.exists():
        # A trained candidate was chosen and is evaluated on the test split now.
        card = _card(weights)
    else:
        write_json(folder / "recipe.json", asdict(recipe))
        model = trainer.run()
        card = {
            "arch": recipe.model.arch,
            "options": recipe.model.options_for(train.num_classes),
            "recipe": asdict(recipe),
            "train_images": len(train),
            "data": train.fingerprint(),
            "seconds": round(trainer.seconds, 1),
            "resumed": resumed,
            "device": _device_name(trainer.device),
            "code": code_version(),
        }
        zoo.save(model, folder, recipe.name, card)
    # Evaluate the stored model, which is in half precision.
    stored = zoo.load(str(weights), device=device)
    held_out = {"val": val}
    if test_images != 0:
        held_out["test"] = datasets.load(recipe.data.name, "test", root=root).take(slice(test_images))
    with monitor.show_evaluation(sum(map(len, held_out.values()))) as progress:
        card["figures"] = figures(stored, recipe, held_out, progress)
    zoo.save(stored, folder, recipe.name, card)
    return card


def _card(weights: Path) -> dict[str, Any]:
    found = read_card(weights)
    return {"arch": found.arch, "options": dict(found.options), **found.card}


def figures(
    model: nn.Module, recipe: Recipe, splits: dict[str, ImageData], progress: Callable[[int], None]
) -> dict[str, Any]:
    """Return clean and PGD-20 accuracy on held-out splits, and that of the smoothed classifier for `gaussian`.

    PGD has the threat model of the recipe, or Linf 8/255.
    """
    adversarial = recipe.method.name in ("at", "trades", "iaat")
    threat = recipe.method.threat if adversarial else Linf(8 / 255)
    attack = PGD(threat, steps=20, stop_when_fooled=True)
    size = 1000 if next(model.parameters()).is_cuda else 100
    options = EvaluationOptions(batch_size=size)
    found = {
        split: _summary(evaluate(model, data, attack, options=options, progress=_increments(progress)))
        for split, data in splits.items()
    }
    if recipe.method.name == "gaussian":
        smooth = SmoothedClassifier(model, recipe.method.sigma, samples=SMOOTHING_SAMPLES, batch=4 * size)
        for split, data in splits.items():
            found[split]["smoothed"] = evaluate(smooth, data, options=options).clean
    return found


def _increments(advance: Callable[[int], None]) -> RunProgress:
    """Pass on how many images were finished since the last call."""
    done = 0

    def report(progress: Progress) -> None:
        nonlocal done
        advance(progress.seen - done)
        done = progress.seen

    return report


def _summary(result: Evaluation) -> dict[str, float]:
    return {"images": len(result.labels), "clean": result.clean, "pgd20": result.robust}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
