"""Train the mixer of a mixture, which gives each image its alpha."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.data.datasets import ImageData, check_data
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.threat import Threat, check_threat
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.trainer import MixingTrainer
from adaptive_smoothing.training.options import TrainingOptions


@memory_given_back(collect=True)
def train_mixing(
    mixed: MixedClassifier,
    train: ImageData,
    val: ImageData,
    threat: Threat,
    *,
    recipe: MixingRecipe | None = None,
    clean_accuracy: float = 0.0,
    folder: Path | str = "runs/mixing",
    device: str | None = None,
    compiled: bool | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> MixedClassifier:
    """Train the `Mixer` of a mixture in place; return the mixture at the operating point of the recipe.

    The result has the range of alpha and the scale of g from training, unless `mixed` has its own.

    Args:
        mixed: a mixture whose alpha is a `FineTunedTail`, a `MixingNetwork` or a `Mixer` of yours.
        train, val: images for training, and for the operating point. Neither may be used to test g or h.
        threat: the norm and the radius of the attacks on training images.
        recipe: default: `default_recipe` for the mixer, the threat and the clean accuracy.
        clean_accuracy: the target for the operating point; default: that of the recipe.
        folder: receives the checkpoint and the log.
        device: where to train; by default where the mixture is.
        compiled: compile the networks; by default on CUDA only.
        resume: continue an interrupted training in the folder.
        quiet: print nothing.

    Examples:
        >>> from adaptive_smoothing.training.mixing.recipe import AttackSettings, MixingOptimizer
        >>> attack, optimizer = AttackSettings(setting="B", steps=2), MixingOptimizer(epochs=1, batch_size=20)
        >>> short = ads.MixingRecipe(name="short", attack=attack, optimizer=optimizer)
        >>> learned = ads.MixedClassifier(g, h, ads.MixingNetwork.between(g, h))
        >>> train = val  # for this example only: thousands of other images are needed
        >>> learned = ads.train_mixing(learned, train, val, threat, recipe=short, quiet=True)
        >>> learned.learns_alpha
        True
    """
    check_data(train)
    check_data(val)
    check_threat(threat)
    if recipe is None:
        kind = FineTunedTail.kind if isinstance(mixed.alpha, FineTunedTail) else MixingNetwork.kind
        recipe = default_recipe(threat, kind=kind, clean_accuracy=clean_accuracy, size=train.images.shape[-1])
    _check_agreement(recipe, threat, clean_accuracy)
    device = device or str(mixed.alpha_shift.device)
    options = TrainingOptions(Path(folder), device=device, compiled=compiled, resume=resume, quiet=quiet)
    return _train(mixed, train, val, recipe, options)


@memory_given_back(collect=True)
def fit_adaptive(
    standard: nn.Module,
    robust: nn.Module,
    train: ImageData,
    val: ImageData,
    recipe: MixingRecipe,
    options: TrainingOptions,
) -> MixedClassifier:
    """Return the mixture of two classifiers with a new mixer, made and trained by the recipe (see `train_mixing`)."""
    channels, height, width = train.images.shape[1:]
    mixed = untrained_mixture(recipe, standard, robust, (channels, height, width))
    return _train(mixed, train, val, recipe, options)


def untrained_mixture(
    recipe: MixingRecipe, standard: nn.Module, robust: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)
) -> MixedClassifier:
    """Return the mixture of two classifiers of images of this shape, with the mixer of the recipe before training."""
    torch.manual_seed(recipe.seed)
    settings, point = recipe.mixer, recipe.operating_point
    mixer: Mixer
    if settings.kind == FineTunedTail.kind:
        tap = settings.robust_taps[0] if settings.robust_taps else None
        mixer = FineTunedTail.of(robust, tap, shape=shape, hidden=settings.hidden)
    else:
        taps = {"standard_taps": settings.standard_taps, "robust_taps": settings.robust_taps}
        mixer = MixingNetwork.between(standard, robust, **taps, shape=shape, width=settings.width, depth=settings.depth)
    mixed = MixedClassifier(standard, robust, mixer, standard_scale=recipe.standard_scale)
    return mixed.with_sigmoid(point.scale, point.shift)


def training_facts(recipe: MixingRecipe, images: int, seconds: float, device: torch.device | str) -> dict[str, Any]:
    """Return the facts about a training for the card of its mixture."""
    return {"recipe": asdict(recipe), "train_images": images, "seconds": round(seconds, 1), **environment(device)}


def _check_agreement(recipe: MixingRecipe, threat: Threat, clean_accuracy: float) -> None:
    """Raise an error if an argument of `train_mixing` contradicts the recipe, which would win."""
    attack, point = recipe.attack, recipe.operating_point
    if threat != attack.threat:
        hint = "pass recipe.attack.threat, or change attack.norm and attack.eps of the recipe"
        raise ValueError(f"expected the threat of the recipe, {attack.threat}, got {threat}: {hint}")
    if clean_accuracy not in (0, point.clean_accuracy):
        wanted = f"the clean accuracy of the recipe, {point.clean_accuracy:g}"
        hint = "leave it out, or change operating_point.clean_accuracy of the recipe"
        raise ValueError(f"expected {wanted}, got {clean_accuracy:g}: {hint}")


def _train(
    mixed: MixedClassifier, train: ImageData, val: ImageData, recipe: MixingRecipe, options: TrainingOptions
) -> MixedClassifier:
    """Train the mixer in place; return the mixture with its own scale of g and range of alpha, if it has any."""
    options.check_folder()
    if mixed.standard_scale == 1:
        mixed = mixed.with_scales(recipe.standard_scale, mixed.robust_scale)
    trainer = MixingTrainer(recipe, mixed, train, val, options)
    if options.resume:
        trainer.resume()
    trainer.run()
    low, high = mixed.alpha_range.tolist()
    return trainer.mixed if (low, high) == (0, 1) else trainer.mixed.with_alpha_range(low, high)
