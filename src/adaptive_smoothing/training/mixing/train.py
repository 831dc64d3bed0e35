"""From two classifiers to a mixture with a wanted accuracy, in three ways: one alpha for all images (fixed), one alpha
and a transform of h (nonlinear, MixedNUTS), or a network that gives each image its alpha (adaptive).

Everything that is chosen here is chosen on validation images.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.presets import margin_attack
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.trainer import MixingTrainer, untrained_mixture
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import CommonRecipe
from adaptive_smoothing.tuning.nonlinear import NonlinearSetting, search_nonlinear
from adaptive_smoothing.tuning.tune import Say, robust_accuracy_under

# The paper multiplies g's logits by this: a g that is sure changes fewer predictions that h is sure of.
STANDARD_SCALE = 3.0
# Validation images that are attacked to choose a transform, and settings that are attacked again to choose among them.
ATTACKED, PROBE_IMAGES = 1000, 3


def fixed_mixture(
    standard: nn.Module, robust: nn.Module, *, standard_scale: float = STANDARD_SCALE, robust_scale: float = 1.0
) -> MixedClassifier:
    """One alpha for all images, which is still to be tuned (`ads.tune`)."""
    return MixedClassifier(standard, robust, 0.5, standard_scale=standard_scale, robust_scale=robust_scale)


def fit_nonlinear(
    standard: nn.Module,
    robust: nn.Module,
    val: ImageData,
    threat: Threat,
    *,
    clean_accuracy: float,
    attacked: int = ATTACKED,
    tried: int = PROBE_IMAGES,
    say: Say = lambda text: None,
) -> tuple[MixedClassifier, NonlinearSetting]:
    """MixedNUTS: the transform of h with the best robust accuracy at the wanted clean one.

    The search goes by estimates; the best few are attacked, and the one that stands most often is taken.
    """
    data = val.to(next(robust.parameters()).device)
    few = data.take(slice(attacked))
    stands = robust_accuracy_under(few, threat)
    best: tuple[float, MixedClassifier, NonlinearSetting] | None = None
    for setting in _promising(standard, robust, data, few, threat, clean_accuracy, say)[:tried]:
        say(f"attacking the mixture with scale {setting.scale:g}, power {setting.power:g}, shift {setting.shift:g}")
        mixed = setting.mix(standard, robust).to(data.images.device)
        share = stands(mixed)
        if best is None or share > best[0]:
            best = share, mixed, setting
    assert best is not None
    return best[1], best[2]


def _promising(
    standard: nn.Module, robust: nn.Module, data: ImageData, few: ImageData, threat: Threat, target: float, say: Say
) -> list[NonlinearSetting]:
    """Transforms of h by estimate, the best first."""
    say(f"attacking h on {len(few):,} validation images")
    worst = worst_logits(robust, few, margin_attack(threat))
    g, h = (fp32_logits_chunked(model, data.floats()) for model in (standard, robust))
    return _different(search_nonlinear(g, h, data.labels, worst, few.labels, clean_accuracy=target))


def _different(settings: list[NonlinearSetting]) -> list[NonlinearSetting]:
    """The best of each power and shift: settings that differ in scale alone are much the same."""
    first: dict[tuple[float, float], NonlinearSetting] = {}
    for setting in settings:
        first.setdefault((setting.power, setting.shift), setting)
    return list(first.values())


def worst_logits(model: nn.Module, data: ImageData, cascade: Cascade) -> Tensor:
    """What a model says of the worst version of each image that the attacks find."""
    images = data.floats()
    logits = fp32_logits_chunked(model, images)
    index = torch.arange(len(images), device=images.device)
    shot = AttackInput(images, data.labels, index, logits, cascade.threat)
    standing, engine = CascadeState.before(shot), Engine(model, images.device)
    for number, stage in enumerate(cascade.for_model(model).stages):
        run_stage(engine, number, stage, shot, standing)
    return fp32_logits_chunked(model, standing.worst)


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
    """Train the `Mixer` of a mixture, and leave its dial where the recipe wants it.

    The mixer itself is trained, not a copy; what is returned has the dial, and the range of alpha and the scale of g
    that the network learned with, unless the mixture has its own. Give it images that neither g nor h was tested on:
    `train` to learn from, `val` for the dial. `clean_accuracy` is what the default recipe trains for.
    """
    if recipe is None:
        kind = "second-ending" if isinstance(mixed.alpha, FineTunedTail) else "network"
        recipe = default_recipe(threat, kind=kind, clean_accuracy=clean_accuracy, size=train.images.shape[-1])
    if mixed.standard_scale == 1:
        mixed = mixed.with_scales(recipe.standard_scale, mixed.robust_scale)
    folder = Path(folder)
    device = device or str(mixed.alpha_shift.device)
    watcher = TrainingMonitor(folder, title=recipe.name, quiet=quiet)
    trainer = MixingTrainer(recipe, mixed, train, val, folder, device=device, compiled=compiled, watcher=watcher)
    if trainer.checkpoint.exists() and not resume:
        raise FileExistsError(
            f"{folder} holds a run already: go on with resume, choose another folder, or delete it to start again"
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
    **options: Any,
) -> MixedClassifier:
    """A mixing network, made and trained as the recipe says; options as `train_mixing` has them."""
    channels, height, width = train.images.shape[1:]
    mixed = untrained_mixture(recipe, standard, robust, (channels, height, width))
    return train_mixing(mixed, train, val, recipe.attack.threat, recipe=recipe, **options)


def training_facts(recipe: CommonRecipe, images: int, seconds: float, device: torch.device | str) -> dict[str, Any]:
    """What made a mixing network, for the card of its mixture."""
    return {"recipe": asdict(recipe), "train_images": images, "seconds": round(seconds, 1), **environment(device)}
