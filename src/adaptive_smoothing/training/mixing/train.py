"""Train the mixing network of a mixture, which gives each image its alpha."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.trainer import MixingTrainer, untrained_mixture
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import CommonRecipe

FOLDER = "runs/mixing"


def train_mixing(
    mixed: MixedClassifier,
    train: ImageData,
    val: ImageData,
    threat: Threat,
    *,
    recipe: MixingRecipe | None = None,
    clean_accuracy: float = 0.0,
    folder: Path | str = FOLDER,
    device: str | None = None,
    compiled: bool | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> MixedClassifier:
    """Train the `Mixer` of a mixture in place; return the mixture at the operating point of the recipe.

    The result has the range of alpha and the scale of g from training, unless `mixed` has its own. The default recipe
    is `default_recipe` for the threat and the clean accuracy. `val` has the images for the operating point. Neither
    `train` nor `val` may be used to test g or h.
    """
    if recipe is None:
        kind = "fine-tuned-tail" if isinstance(mixed.alpha, FineTunedTail) else "network"
        recipe = default_recipe(threat, kind=kind, clean_accuracy=clean_accuracy, size=train.images.shape[-1])
    if mixed.standard_scale == 1:
        mixed = mixed.with_scales(recipe.standard_scale, mixed.robust_scale)
    folder, device = Path(folder), device or str(mixed.alpha_shift.device)
    monitor = TrainingMonitor(folder, title=recipe.name, quiet=quiet)
    trainer = MixingTrainer(recipe, mixed, train, val, folder, device=device, compiled=compiled, monitor=monitor)
    if trainer.checkpoint.exists() and not resume:
        raise FileExistsError(
            f"expected a folder without a run, got {folder}: continue with resume, choose another folder, or delete it"
        )
    if resume:
        trainer.resume()
    trainer.run()
    low, high = mixed.alpha_range.tolist()
    return trainer.mixed if (low, high) == (0, 1) else trainer.mixed.with_alpha_range(low, high)


def fit_adaptive(
    standard: nn.Module,
    robust: nn.Module,
    train: ImageData,
    val: ImageData,
    recipe: MixingRecipe,
    *,
    folder: Path | str = FOLDER,
    device: str | None = None,
    compiled: bool | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> MixedClassifier:
    """Return the mixture of two classifiers with a new mixer, made and trained by the recipe (see `train_mixing`)."""
    channels, height, width = train.images.shape[1:]
    mixed = untrained_mixture(recipe, standard, robust, (channels, height, width))
    return train_mixing(
        mixed,
        train,
        val,
        recipe.attack.threat,
        recipe=recipe,
        folder=folder,
        device=device,
        compiled=compiled,
        resume=resume,
        quiet=quiet,
    )


def training_facts(recipe: CommonRecipe, images: int, seconds: float, device: torch.device | str) -> dict[str, Any]:
    """Return the facts about a training for the card of its mixture."""
    return {"recipe": asdict(recipe), "train_images": images, "seconds": round(seconds, 1), **environment(device)}
