"""`adaptive-smoothing mix G H`: mix two models, with a wanted clean or robust accuracy, and store the mixture."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import Count, TimeBar, screen
from adaptive_smoothing.cli.mix_options import (
    MixOptions,
    Mode,
    Target,
    check_mode,
    choose_mode,
    read_target,
    split_changes,
)
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.mixing.pretrained import FILE
from adaptive_smoothing.models.zoo import short_name
from adaptive_smoothing.results import read_json
from adaptive_smoothing.runs.folder import check_writable, environment
from adaptive_smoothing.runs.progress_bar import clock
from adaptive_smoothing.settings import changed, read_toml
from adaptive_smoothing.threat import Threat, parse_threat
from adaptive_smoothing.training.loop import TrainingOptions
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, training_facts
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve, at_setting, current_setting
from adaptive_smoothing.tuning.nonlinear import ATTACKED, fit_nonlinear
from adaptive_smoothing.tuning.tune import STANDARD_SCALE, robust_accuracy_under, tune, with_clean_accuracy

THREAT, DATA = "Linf:8/255", "builtin"
# Cost of a step of an attack and of a training step, in predictions of both models: to estimate the time of a training.
PASSES_PER_ATTACK_STEP, PASSES_PER_STEP = 1.5, 6.0
# Validation images that a search attacks on a CPU.
FEW = 100


def mix(
    standard: opt.Standard,
    robust: opt.Robust,
    mode: Annotated[
        Mode | None,
        typer.Option(help="One alpha, an alpha per image (trained), or MixedNUTS; by default fixed on a CPU."),
    ] = None,
    clean: opt.CleanAccuracy = None,
    robust_accuracy: Annotated[
        float | None, typer.Option(help="Choose alpha for this accuracy under attack: 0.4, or 40.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="The alpha itself, for --mode fixed.")] = None,
    threat: Annotated[
        str | None, typer.Option(help="Linf:8/255, L2:0.5, ...; by default that of the recipe, or Linf:8/255.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe for --mode adaptive: recipes/mixing*.toml.")] = None,
    changes: Annotated[list[str], opt.set_option(MixOptions, "search=true", "a key of the recipe")] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(help="Data set, as in `sweep`; by default that of the recipe, or builtin.")
    ] = None,
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    resume: opt.Resume = False,
    hold: Annotated[bool, typer.Option("--hold", help="Store copies of G and H with the mixture.")] = False,
    device: opt.Device = "auto",
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Mix two models into one, with a wanted clean or robust accuracy."""
    console, where = screen(), opt.pick_device(device)
    options, recipe_changes = split_changes(changes)
    trains = bool(recipe or recipe_changes or resume)
    mode, reason = choose_mode(mode, where, alpha, trains)
    target = read_target(mode, clean, robust_accuracy, alpha)
    check_mode(mode, recipe, recipe_changes, resume, options, target)
    if reason:
        console.print(reason)
    folder = out or Path("runs") / f"mix-{short_name(standard)}-{short_name(robust)}-{mode}"
    training = TrainingOptions(folder, device=where, compiled=options.compiled, resume=resume)
    if not overwrite:
        _check_folder(training, mode)
    check_writable(folder)
    named = read_toml(recipe, MixingRecipe, recipe_changes) if recipe else None
    data = data or (named.data.name if named else DATA)
    models = opt.own_models(loader, mean, std, size).load([standard, robust], where)
    pair = _pair((standard, robust), models, *_images(data, data_root, download, mode))
    scale = options.standard_scale or STANDARD_SCALE
    settings = None
    if mode is Mode.adaptive:
        settings = _recipe(named or _default_recipe(recipe_changes, pair), threat, options, data, target)
    against = settings.attack.threat if settings else parse_threat(threat or THREAT)
    start = time.perf_counter()
    curve = _fixed_alpha_curve(pair, scale, target, console)
    seconds_per_image = (time.perf_counter() - start) / len(pair.val)
    searched, confirmed = _images_to_attack(options.attacked, where)
    if overwrite and not resume:
        training.checkpoint.unlink(missing_ok=True)
    with training.stops_with_checkpoint():
        if settings:
            console.print(_training_notice(settings, pair, data, where, seconds_per_image))
            made = _train(pair, settings, training)
        elif mode is Mode.nonlinear:
            made = _search_nonlinear(pair, against, target.value, searched, console)
        else:
            made = MixedClassifier(pair.g, pair.h, 0.5, standard_scale=scale)
        known = curve if mode is Mode.fixed and not options.search else None
        mixed = _tune(made, known, pair.val, against, target, options.search, searched, console)
        attacked = _attack(mixed, pair, against, confirmed, console)
        card = _card(mode, against, target, pair.val) | environment(where) | made.card
        accuracy = known or _measure_curve(mixed, pair.val, console)
        reached = _store(mixed, accuracy, folder, hold, card, attacked)
    _print_result(console, f"{reached} {_comparison(pair, curve, attacked)}", folder, data, loader)
    print_result(read_json(folder / FILE), folder)


def _check_folder(training: TrainingOptions, mode: Mode) -> None:
    """Raise an error if the folder has a mixture or an unfinished training that would be replaced."""
    continues = training.resume and training.checkpoint.exists()
    if (training.folder / FILE).exists() and not continues:
        hint = "choose another --out, or replace it with --overwrite"
        raise FileExistsError(f"expected a folder without a mixture, got {training.folder}, which holds one: {hint}")
    if mode is Mode.adaptive:
        training.check_folder()


class Pair(NamedTuple):
    """Two models with their short names, the images to train on, and those to choose alpha on."""

    standard: str
    robust: str
    g: nn.Module
    h: nn.Module
    train: ImageData
    val: ImageData


def _images(data: str, root: Path | None, download: bool, mode: Mode) -> tuple[ImageData, ImageData]:
    """Load the images to train on, which are empty in a mode without training, and those to choose alpha on."""
    val = datasets.load(data, "val", root=root, download=download)
    if mode is not Mode.adaptive:
        return val.take(slice(0)), val
    if data == "builtin":  # has no training images, so half of its val split is used
        half = len(val) // 2
        return val.take(slice(half)), val.take(slice(half, None))
    return datasets.load(data, "train", root=root, download=download), val


def _pair(names: tuple[str, str], models: list[nn.Module], train: ImageData, val: ImageData) -> Pair:
    """Return the models with their short names and the images, and check that they have the same classes."""
    check_classes(dict(zip(names, models, strict=True)), val)
    return Pair(short_name(names[0]), short_name(names[1]), models[0], models[1], train, val)


def _default_recipe(changes: list[str], pair: Pair) -> MixingRecipe:
    """Return the default recipe for the size of the images, with the changes of `--set`."""
    size = pair.train.images.shape[-1]
    return changed(default_recipe(parse_threat(THREAT), f"mixing-{pair.robust}", size=size), changes)


def _recipe(recipe: MixingRecipe, threat: str | None, options: MixOptions, data: str, target: Target) -> MixingRecipe:
    """Return the recipe with the values of the command line.

    A recipe that adjusts the operating point in training, and names no clean accuracy for it, uses the target.
    """
    recipe = replace(recipe, data=replace(recipe.data, name=data))
    point = recipe.operating_point
    if point.has_target and not point.clean_accuracy:
        recipe = replace(recipe, operating_point=replace(point, clean_accuracy=target.clean_accuracy or 0.0))
    if threat is not None:
        against = parse_threat(threat)
        recipe = changed(recipe, [f"attack.norm={against.norm}", f"attack.eps={against.eps}"])
    return recipe if options.standard_scale is None else replace(recipe, standard_scale=options.standard_scale)


def _fixed_alpha_curve(pair: Pair, scale: float, target: Target, console: Console) -> CleanAccuracyCurve:
    """Return the clean accuracy at every fixed alpha; raise an error if the target is too high for this pair."""
    curve = _measure_curve(MixedClassifier(pair.g, pair.h, 0.5, standard_scale=scale), pair.val, console)
    if curve(0) <= curve(1):
        raise ValueError(
            f"expected a G that is more accurate than H, got {pair.standard} with {100 * curve(0):.2f} % and "
            f"{pair.robust} with {100 * curve(1):.2f} % on validation images: name G first, then H"
        )
    if target.clean_accuracy is not None:
        curve.largest_setting(target.clean_accuracy)
    return curve


def _measure_curve(mixed: MixedClassifier, val: ImageData, console: Console) -> CleanAccuracyCurve:
    """Return the clean accuracy at every setting of a mixture, showing the progress."""
    with TimeBar(console) as bar:
        return accuracy_curve(mixed, val, progress=Count(bar, len(val), "validation images predicted"))


def _training_notice(recipe: MixingRecipe, pair: Pair, data: str, device: str, seconds_per_image: float) -> str:
    """Return what is trained, on a CPU with the time it will take, estimated from the time of a prediction."""
    images, epochs = len(pair.train), recipe.optimizer.epochs
    text = f"Training a mixer on {images:,} images in {epochs} epoch{'s' * (epochs != 1)}."
    if device == "cpu":
        passes = PASSES_PER_ATTACK_STEP * recipe.attack.steps + PASSES_PER_STEP
        seconds = seconds_per_image * passes * images * epochs
        text += f" On this CPU it takes about {clock(seconds)} (minutes:seconds); Ctrl-C stops it, --resume continues."
    if data == DATA:
        text += f" {images:,} images are few: --data cifar10 gives a better mixer."
    return text


def _images_to_attack(asked: int | None, device: str) -> tuple[int, int]:
    """Return the number of validation images to attack in a search, and at the end.

    On a CPU the attack at the end takes minutes, so it is made only if it was asked for.
    """
    searched, confirmed = (ATTACKED, ATTACKED) if device.startswith("cuda") else (FEW, 0)
    return asked or searched, confirmed if asked is None else asked


def _train(pair: Pair, recipe: MixingRecipe, options: TrainingOptions) -> MixedClassifier:
    """Return the mixture with a trained mixer, and with facts about the training in its card."""
    start = time.perf_counter()
    mixed = fit_adaptive(pair.g, pair.h, pair.train, pair.val, recipe, options)
    facts = training_facts(recipe, len(pair.train), time.perf_counter() - start, options.device)
    mixed.card = facts | {"resumed": options.resume}
    return mixed


def _search_nonlinear(pair: Pair, threat: Threat, clean: float, attacked: int, console: Console) -> MixedClassifier:
    """Return the MixedNUTS mixture with this clean accuracy, showing what is being attacked."""
    with TimeBar(console) as bar:

        def log(text: str) -> None:
            bar.report(text, None)

        return fit_nonlinear(pair.g, pair.h, pair.val, threat, clean_accuracy=clean, attacked=attacked, log=log)


def _tune(
    mixed: MixedClassifier,
    known: CleanAccuracyCurve | None,
    val: ImageData,
    threat: Threat,
    target: Target,
    search: bool,
    images: int,
    console: Console,
) -> MixedClassifier:
    """Return the mixture at the operating point of the target, which takes attacks unless it is a clean accuracy.

    `known` is the clean accuracy of the mixture at every setting, if it has been measured.
    """
    clean = target.clean_accuracy
    if target.name == "alpha":
        return at_setting(mixed, target.value)
    if clean is not None and not search:
        return with_clean_accuracy(mixed, known or _measure_curve(mixed, val, console), clean)
    robust = target.value if clean is None else None
    with TimeBar(console) as bar:
        bar.report(f"attacking {min(len(val), images):,} validation images several times", None)
        return tune(
            mixed, val, clean_accuracy=clean, robust_accuracy=robust, threat=threat, attacked=images, log=console.print
        )


class Attacked(NamedTuple):
    """Robust accuracies of the mixture and of H under the preset `fast`."""

    images: int
    mixture: float
    robust: float


def _attack(mixed: MixedClassifier, pair: Pair, threat: Threat, images: int, console: Console) -> Attacked | None:
    """Attack the mixture and H on the first validation images; return None if there are no images to attack."""
    if not images:
        return None
    few = pair.val.take(slice(images))
    robust = robust_accuracy_under(few, threat)
    with TimeBar(console) as bar:
        bar.report(f"attacking {len(few):,} validation images", None)
        return Attacked(len(few), robust(mixed), robust(pair.h))


def _store(
    mixed: MixedClassifier,
    accuracy: CleanAccuracyCurve,
    folder: Path,
    hold: bool,
    card: dict[str, Any],
    attacked: Attacked | None,
) -> str:
    """Store the mixture, its card, and its clean accuracy at every setting; return a sentence on that accuracy."""
    setting, images = current_setting(mixed), len(accuracy.low)
    figures = {"images": images, "clean": accuracy(setting)}
    figures |= {"fast": attacked.mixture, "attacked": attacked.images} if attacked else {}
    mixed.save_pretrained(folder, hold=hold, card=card | {"figures": {"val": figures}})
    accuracy.save(folder / VALIDATION)
    clean = f"{100 * accuracy(setting):.2f} % on {images:,} validation images"
    return f"The mixture has a clean accuracy of {clean}, at {accuracy.parameter} {setting:.4g}."


def _card(mode: Mode, threat: Threat, target: Target, val: ImageData) -> dict[str, Any]:
    """Return the facts for the card that follow from the command line."""
    wanted = {target.name: target.value}
    against = f"{threat.norm}:{threat.eps:g}"
    return {"mode": str(mode), "threat": against, "wanted": wanted, "data": val.fingerprint()}


def _print_result(console: Console, text: str, folder: Path, data: str, loader: str | None) -> None:
    """Print the result and the command to run next, which is not wrapped so that it can be copied."""
    given = {"--data": data if data != DATA else None, "--loader": loader}
    options = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    attack = f"adaptive-smoothing evaluate {shlex.quote(str(folder))} --attack adaptive{options}"
    console.print(f"\n{text}\nWritten to {folder}. Next, attack it: {attack}", soft_wrap=True)


def _comparison(pair: Pair, curve: CleanAccuracyCurve, attacked: Attacked | None) -> str:
    """Return sentences on the clean accuracies of both models, and on accuracies under attack."""
    clean = f"{pair.standard} alone has {100 * curve(0):.2f} %, {pair.robust} alone {100 * curve(1):.2f} %."
    if attacked is None:
        return f"{clean}\nThe mixture was not attacked: --set attacked={FEW} attacks {FEW} validation images."
    shares = f"{100 * attacked.mixture:.2f} %, {pair.robust} alone {100 * attacked.robust:.2f} %"
    return f"{clean}\nRobust accuracy under the preset fast, on {attacked.images:,} images: the mixture {shares}."
