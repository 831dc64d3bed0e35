"""`adaptive-smoothing mix G H`: one artifact out of two models, with the accuracy that is asked for."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.cli.console import TimeBar, screen
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.target import VALIDATION, as_share
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.mixing.pretrained import FILE
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import short_name
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.settings import changed, read_toml
from adaptive_smoothing.threat import Threat, parse_threat
from adaptive_smoothing.training.loop import CHECKPOINT
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, training_facts
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import accuracy_curve, at_setting, current_setting
from adaptive_smoothing.tuning.nonlinear import ATTACKED, fit_nonlinear
from adaptive_smoothing.tuning.tune import STANDARD_SCALE, robust_accuracy_under, tune

THREAT, DATA = "Linf:8/255", "cifar10"
# Images that a search attacks on a CPU.
FEW = 100


class Mode(StrEnum):
    fixed = "fixed"
    adaptive = "adaptive"
    nonlinear = "nonlinear"


def mix(
    standard: Annotated[str, typer.Argument(metavar="G", help="The accurate model: see `models`, or a path")],
    robust: Annotated[str, typer.Argument(metavar="H", help="The robust model")],
    mode: Annotated[Mode, typer.Option(help="One alpha, a trained alpha(x), or a transform of H")] = Mode.adaptive,
    threat: Annotated[
        str | None, typer.Option(help="Linf:8/255, L2:0.5, ...; default: the recipe's, or Linf:8/255")
    ] = None,
    clean: Annotated[float | None, typer.Option("--clean-accuracy", help="Wanted: 0.9, or 90")] = None,
    robust_accuracy: Annotated[float | None, typer.Option(help="Wanted under attack: 0.4, or 40")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Of --mode fixed: just this one")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Of --mode adaptive: recipes/mixing*.toml")] = None,
    change: Annotated[list[str], typer.Option("--set", help="Change a key of the recipe")] = [],  # noqa: B006
    standard_scale: Annotated[
        float | None, typer.Option(help="G's logits times this; default: the recipe's, or 3")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Attack other scales, too, and take the most robust")
    ] = False,
    attacked: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Validation images to attack, in a search and in the end; default: 1,000; on a CPU 100 in a search, "
            "none in the end",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="cifar10, cifar100, builtin, or a path; default: the recipe's, or cifar10")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/mix-G-H-MODE")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Put G and H into the folder, too")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the mixture in the folder")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Default: on CUDA")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
) -> None:
    """Mix two models into one artifact with a wanted clean or robust accuracy."""
    console, where = screen(), pick_device(device)
    wanted = _wanted(mode, clean, robust_accuracy, alpha)
    of_adaptive = {"--recipe": recipe, "--set": change, "--resume": resume, "--compile": compiled is not None}
    _check_options(mode, of_adaptive, standard_scale)
    _check_search(mode, search, wanted)
    folder = out or Path("runs") / f"mix-{short_name(standard)}-{short_name(robust)}-{mode}"
    _check_folder(folder, overwrite or (resume and (folder / CHECKPOINT).exists()))
    named = read_toml(recipe, MixingRecipe, change) if recipe else None
    data = data or (named.data.name if named else DATA)
    pair = _pair(standard, robust, where, data, data_root, download)
    scale = STANDARD_SCALE if standard_scale is None else standard_scale
    settings = None
    if mode is Mode.adaptive:
        settings = _recipe(named or _default_recipe(change, pair), threat, standard_scale, data, wanted)
    against = settings.attack.threat if settings else parse_threat(threat or THREAT)
    alone = _alone(pair, scale, wanted)
    searched, in_the_end = _attacked(attacked, where)
    if overwrite and not resume:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    if settings:
        mixed, facts = _trained(pair, settings, folder=folder, device=where, compiled=compiled, resume=resume)
    elif mode is Mode.nonlinear:
        mixed, facts = _nonlinear(pair, against, wanted["clean_accuracy"], searched, console)
    else:
        mixed, facts = MixedClassifier(pair.g, pair.h, 0.5, standard_scale=scale), {}
    mixed = _dialled(mixed, pair.val, against, wanted, search, searched, console)
    kept = _kept(mixed, pair, against, in_the_end, console)
    asked = {"mode": str(mode), "threat": f"{against.norm}:{against.eps:g}", "wanted": wanted}
    card = asked | {"data": pair.val.fingerprint()} | environment(where) | facts
    said = _store(mixed, pair.val, folder, hold, card, kept)
    console.print(f"\n{said}; {_beside(pair, alone, kept)}\n{_then(folder)}", soft_wrap=True)


class Pair(NamedTuple):
    """Two models with their short names, the images to learn from, and those to set the dial on."""

    standard: str
    robust: str
    g: nn.Module
    h: nn.Module
    train: ImageData
    val: ImageData


def _pair(standard: str, robust: str, device: str, data: str, root: Path | None, download: bool) -> Pair:
    g, h = (zoo.load(name, device=device) for name in (standard, robust))
    train, val = _images(data, root, download)
    check_classes({standard: g, robust: h}, val)
    return Pair(short_name(standard), short_name(robust), g, h, train, val)


def _alone(pair: Pair, scale: float, wanted: dict[str, float]) -> CleanAccuracyCurve:
    """What both have alone and mixed with one alpha, or an error, before anything is trained."""
    alone = accuracy_curve(MixedClassifier(pair.g, pair.h, 0.5, standard_scale=scale), pair.val)
    if alone(0) <= alone(1):
        raise ValueError(
            f"expected a G that is more accurate than H, got {pair.standard} with {100 * alone(0):.2f} % and "
            f"{pair.robust} with {100 * alone(1):.2f} % on validation images: G first, then H; or take H alone"
        )
    if "clean_accuracy" in wanted:
        alone.largest_setting(wanted["clean_accuracy"])
    return alone


class Kept(NamedTuple):
    """Shares of so many images that stand an attack."""

    images: int
    mixture: float
    robust: float


def _attacked(asked: int | None, device: str) -> tuple[int, int]:
    """How many images are attacked in a search, and in the end. On a CPU attacks take too long for somebody who has not
    asked for them."""
    searched, in_the_end = (ATTACKED, ATTACKED) if device.startswith("cuda") else (FEW, 0)
    return asked or searched, in_the_end if asked is None else asked


def _kept(mixed: MixedClassifier, pair: Pair, threat: Threat, images: int, console: Console) -> Kept | None:
    """What the mixture and h alone keep of the first validation images under `fast`."""
    if not images:
        return None
    few = pair.val.take(slice(images))
    stands = robust_accuracy_under(few, threat)
    with TimeBar(console) as bar:
        bar.say(f"attacking {len(few):,} validation images", None)
        return Kept(len(few), stands(mixed), stands(pair.h))


def _store(
    mixed: MixedClassifier, val: ImageData, folder: Path, hold: bool, card: dict[str, Any], kept: Kept | None
) -> str:
    """The mixture, its card, and the clean accuracy at every setting of its dial; says where that stands."""
    accuracy, setting = accuracy_curve(mixed, val), current_setting(mixed)
    figures = {"images": len(val), "clean": accuracy(setting)}
    figures |= {"fast": kept.mixture, "attacked": kept.images} if kept else {}
    mixed.save_pretrained(folder, hold=hold, card=card | {"figures": {"val": figures}})
    accuracy.save(folder / VALIDATION)
    clean = f"{100 * accuracy(setting):.2f} % clean accuracy on {len(val):,} validation images"
    return f"{clean}, at {accuracy.parameter} {setting:.4g}"


def _beside(pair: Pair, alone: CleanAccuracyCurve, kept: Kept | None) -> str:
    """What both models have alone, and what that costs under attack."""
    clean = f"{pair.standard} alone has {100 * alone(0):.2f} %, {pair.robust} {100 * alone(1):.2f} %."
    if kept is None:
        return f"{clean}\nIt was not attacked: --attacked {FEW} says what this costs under attack."
    stands = f"{100 * kept.mixture:.2f} % of {kept.images:,} images, {pair.robust} alone {100 * kept.robust:.2f} %"
    return f"{clean}\nUnder attack (fast) it keeps {stands}."


def _then(folder: Path) -> str:
    attack = f"adaptive-smoothing evaluate {folder} --preset adaptive"
    return f"Written to {folder}. What stands the strongest attacks: {attack}"


def _wanted(mode: Mode, clean: float | None, robust: float | None, alpha: float | None) -> dict[str, float]:
    """One target, 90 % clean accuracy where none is named."""
    given = {"clean_accuracy": clean, "robust_accuracy": robust, "alpha": alpha}
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in found)
        raise ValueError(f"expected one target, got {names}: one dial serves one target")
    if alpha is not None and mode is not Mode.fixed:
        raise ValueError(f"expected --alpha with --mode fixed, got --mode {mode}: ask for a --clean-accuracy")
    if robust is not None and mode is Mode.nonlinear:
        raise ValueError("expected --clean-accuracy with --mode nonlinear, got --robust-accuracy: it searches for that")
    if not found:
        return {"clean_accuracy": 0.9}
    return {name: value if name == "alpha" else as_share(value) for name, value in found.items()}


def _images(data: str, root: Path | None, download: bool) -> tuple[ImageData, ImageData]:
    """To learn from, and to set the dial on. The package holds no training images: half of the others stand in."""
    if data == "builtin":
        both = datasets.load(data, "val")
        half = len(both) // 2
        return both.take(slice(half)), both.take(slice(half, None))
    train, val = (datasets.load(data, split, root=root, download=download) for split in ("train", "val"))
    return train, val


def _default_recipe(changes: list[str], pair: Pair) -> MixingRecipe:
    size = pair.train.images.shape[-1]
    return changed(default_recipe(parse_threat(THREAT), f"mixing-{pair.robust}", size=size), changes)


def _recipe(
    recipe: MixingRecipe, threat: str | None, scale: float | None, data: str, wanted: dict[str, float]
) -> MixingRecipe:
    """With what is asked for by options. A dial that turns in training turns to the clean accuracy that is wanted."""
    recipe = replace(recipe, data=replace(recipe.data, name=data))
    point = recipe.operating_point
    if point.has_target and not point.clean_accuracy:
        point = replace(point, clean_accuracy=wanted.get("clean_accuracy", 0.0))
        recipe = replace(recipe, operating_point=point)
    if threat is not None:
        against = parse_threat(threat)
        recipe = changed(recipe, [f"attack.norm={against.norm}", f"attack.eps={against.eps}"])
    return recipe if scale is None else replace(recipe, standard_scale=scale)


def _check_options(mode: Mode, of_adaptive: dict[str, Any], standard_scale: float | None) -> None:
    """What a mode has no use for is a misunderstanding."""
    for name, given in of_adaptive.items():
        if given and mode is not Mode.adaptive:
            raise ValueError(f"expected {name} with --mode adaptive, got --mode {mode}: it trains nothing")
    if standard_scale is not None and standard_scale <= 0:
        raise ValueError(
            f"expected a positive --standard-scale, got {standard_scale:g}: G's logits are multiplied by it"
        )
    if standard_scale is not None and mode is Mode.nonlinear:
        raise ValueError("expected --standard-scale with --mode fixed or adaptive, got nonlinear: its g is always sure")


def _check_search(mode: Mode, search: bool, wanted: dict[str, float]) -> None:
    if search and (mode is Mode.nonlinear or "clean_accuracy" not in wanted):
        raise ValueError("expected --search with a --clean-accuracy and --mode fixed or adaptive: it is kept meanwhile")


def _trained(pair: Pair, settings: MixingRecipe, **options: Any) -> tuple[MixedClassifier, dict[str, Any]]:
    began = time.perf_counter()
    mixed = fit_adaptive(pair.g, pair.h, pair.train, pair.val, settings, **options)
    facts = training_facts(settings, len(pair.train), time.perf_counter() - began, options["device"])
    return mixed, facts | {"resumed": options["resume"]}


def _nonlinear(
    pair: Pair, threat: Threat, target: float, attacked: int, console: Console
) -> tuple[MixedClassifier, dict[str, Any]]:
    with TimeBar(console) as bar:
        options: dict[str, Any] = {"clean_accuracy": target, "attacked": attacked}
        options["log"] = lambda text: bar.say(text, None)
        mixed = fit_nonlinear(pair.g, pair.h, pair.val, threat, **options)
    return mixed, mixed.card


def _dialled(
    mixed: MixedClassifier,
    val: ImageData,
    threat: Threat,
    wanted: dict[str, float],
    search: bool,
    attacked: int,
    console: Console,
) -> MixedClassifier:
    if "alpha" in wanted:
        return at_setting(mixed, wanted["alpha"])
    if "clean_accuracy" in wanted and not search:
        return tune(mixed, val, clean_accuracy=wanted["clean_accuracy"])
    with TimeBar(console) as bar:
        bar.say(f"attacking {min(len(val), attacked):,} validation images, again and again", None)
        options: dict[str, Any] = {"threat": threat, "attacked": attacked, "log": console.print}
        return tune(mixed, val, **options | wanted)


def _check_folder(folder: Path, replaces: bool) -> None:
    if (folder / FILE).exists() and not replaces:
        raise FileExistsError(
            f"expected a folder without a mixture, got {folder}, which holds one: choose another --out, or replace it "
            "with --overwrite"
        )
