"""The plan of `mix`: the models, the images, the threat and the recipe, checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from adaptive_smoothing.cli.mix_options import MixOptions, MixRequest, Mode, Target
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.mixing.pretrained import FILE
from adaptive_smoothing.models.zoo import short_name
from adaptive_smoothing.results import check_writable
from adaptive_smoothing.settings.tables import changed
from adaptive_smoothing.threat import Linf, Threat
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.tuning.tune import STANDARD_SCALE

THREAT, DATA = Linf(8 / 255), "builtin"


class Pair(NamedTuple):
    """Two models with their short names, the images to train on, and those to choose alpha on."""

    standard: str
    robust: str
    g: nn.Module
    h: nn.Module
    train: ImageData
    val: ImageData


@dataclass(frozen=True)
class MixPlan:
    """What `mix` will do.

    Args:
        data: the name of the data set.
        recipe: how the mixer is trained; None if nothing is trained.
        training: the folder, and where to compute.
        overwrite: replace a mixture or an unfinished training in the folder.
    """

    mode: Mode
    target: Target
    options: MixOptions
    pair: Pair
    data: str
    threat: Threat
    recipe: MixingRecipe | None
    training: TrainingOptions
    overwrite: bool

    @property
    def standard_scale(self) -> float:
        """The factor of the logits of G in a mixture with a fixed alpha."""
        return self.options.standard_scale or STANDARD_SCALE


def make_plan(request: MixRequest, pair: Pair, data: str, training: TrainingOptions, overwrite: bool) -> MixPlan:
    """Return the plan for a request with its models and images."""
    recipe = _recipe(request, pair, data) if request.mode is Mode.adaptive else None
    threat = recipe.attack.threat if recipe else request.threat or THREAT
    return MixPlan(request.mode, request.target, request.options, pair, data, threat, recipe, training, overwrite)


def check_folder(training: TrainingOptions, mode: Mode, overwrite: bool) -> None:
    """Raise an error if the folder cannot be written to, or has a mixture or a training that would be replaced."""
    continues = training.resume and training.checkpoint.exists()
    if (training.folder / FILE).exists() and not (continues or overwrite):
        hint = "choose another --out, or replace it with --overwrite"
        raise FileExistsError(f"expected a folder without a mixture, got {training.folder}, which holds one: {hint}")
    if mode is Mode.adaptive and not overwrite:
        training.check_folder()
    check_writable(training.folder, "choose another --out")


def load_images(data: str, root: Path | None, download: bool, mode: Mode) -> tuple[ImageData, ImageData]:
    """Load the images to train on, which are empty in a mode without training, and those to choose alpha on."""
    val = datasets.load(data, "val", root=root, download=download)
    if mode is not Mode.adaptive:
        return val.take(slice(0)), val
    if data == DATA:  # has no training images, so half of its val split is used
        half = len(val) // 2
        return val.take(slice(half)), val.take(slice(half, None))
    return datasets.load(data, "train", root=root, download=download), val


def make_pair(names: tuple[str, str], models: list[nn.Module], train: ImageData, val: ImageData) -> Pair:
    """Return the models with their short names and the images, and check that they have the same classes."""
    check_classes(dict(zip(names, models, strict=True)), val)
    return Pair(short_name(names[0]), short_name(names[1]), models[0], models[1], train, val)


def _recipe(request: MixRequest, pair: Pair, data: str) -> MixingRecipe:
    """Return the recipe of the request, or the default one, with the values of the command line.

    A recipe that adjusts the operating point in training, and names no clean accuracy for it, uses the target.
    """
    recipe = request.recipe or _default_recipe(request.changes, pair)
    recipe = replace(recipe, data=replace(recipe.data, name=data))
    point = recipe.operating_point
    if point.has_target and not point.clean_accuracy:
        recipe = replace(recipe, operating_point=replace(point, clean_accuracy=request.target.clean_accuracy or 0.0))
    if (threat := request.threat) is not None:
        recipe = changed(recipe, [f"attack.norm={threat.norm}", f"attack.eps={threat.eps}"])
    scale = request.options.standard_scale
    return recipe if scale is None else replace(recipe, standard_scale=scale)


def _default_recipe(changes: list[str], pair: Pair) -> MixingRecipe:
    """Return the default recipe for the size of the images, with the changes of `--set`."""
    size = pair.train.images.shape[-1]
    return changed(default_recipe(THREAT, f"mixing-{pair.robust}", size=size), changes)
