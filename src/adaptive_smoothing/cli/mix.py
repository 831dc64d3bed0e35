"""`adaptive-smoothing mix G H`: one artifact out of two models, with the accuracy that is asked for."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.cli.choosing import VALIDATION, as_share
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.printing import TimeBar, screen
from adaptive_smoothing.cli.sweep import check_classes, short
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.dial_curves import dial_accuracy, dial_setting, turned
from adaptive_smoothing.fitting import ATTACKED, STANDARD_SCALE, fit_adaptive, fit_fixed, fit_nonlinear
from adaptive_smoothing.mixing.artifact import FILE
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import environment, training_facts
from adaptive_smoothing.settings import read_toml
from adaptive_smoothing.threat import Threat, parse_threat
from adaptive_smoothing.training.mixing_recipe import MixingRecipe, default_recipe
from adaptive_smoothing.tuning import tune


class Mode(StrEnum):
    fixed = "fixed"
    adaptive = "adaptive"
    nonlinear = "nonlinear"


def mix(
    standard: Annotated[str, typer.Argument(metavar="G", help="The accurate model: see `models`, or a path")],
    robust: Annotated[str, typer.Argument(metavar="H", help="The robust model")],
    mode: Annotated[Mode, typer.Option(help="One alpha, a trained alpha(x), or a transform of H")] = Mode.adaptive,
    threat: Annotated[str, typer.Option(help="Linf:8/255, L2:0.5, ...")] = "Linf:8/255",
    clean: Annotated[float | None, typer.Option("--clean-accuracy", help="Wanted: 0.9, or 90")] = None,
    robust_accuracy: Annotated[float | None, typer.Option(help="Wanted under attack: 0.4, or 40")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Of --mode fixed: just this one")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Of --mode adaptive: recipes/mixing-*.toml")] = None,
    change: Annotated[list[str], typer.Option("--set", help="Change a key of the recipe")] = [],  # noqa: B006
    standard_scale: Annotated[float, typer.Option(help="G's logits times this")] = STANDARD_SCALE,
    search: Annotated[
        bool, typer.Option("--search", help="Attack other scales, too, and take the most robust")
    ] = False,
    data: Annotated[str, typer.Option(help="cifar10, cifar100, builtin, or a path")] = "cifar10",
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
    console, where, against = screen(), pick_device(device), parse_threat(threat)
    wanted = _wanted(mode, clean, robust_accuracy, alpha)
    if search and (mode is Mode.nonlinear or "clean_accuracy" not in wanted):
        raise ValueError("expected --search with a --clean-accuracy and --mode fixed or adaptive: it is kept meanwhile")
    folder = out or Path("runs") / f"mix-{short(standard)}-{short(robust)}-{mode}"
    _check_folder(folder, overwrite or resume)
    g, h = (zoo.load(name, device=where) for name in (standard, robust))
    train, val = _images(data, data_root, download)
    check_classes({standard: g, robust: h}, val)
    card: dict[str, Any] = {"mode": str(mode), "threat": threat, "wanted": wanted, "data": val.fingerprint()}
    card |= environment(where)
    if mode is Mode.adaptive:
        settings = _recipe(recipe, change, against, standard_scale, short(robust))
        options = {"folder": folder, "device": where, "compiled": compiled, "resume": resume}
        began = time.perf_counter()
        mixed = fit_adaptive(g, h, train, val, settings, **options)
        card |= training_facts(settings, len(train), time.perf_counter() - began, where) | {"resumed": resume}
    elif mode is Mode.nonlinear:
        mixed = _nonlinear(g, h, val, against, wanted, card, console)
    else:
        mixed = fit_fixed(g, h, standard_scale=standard_scale)
    mixed = _dialled(mixed, val, against, wanted, search, console)
    accuracy = dial_accuracy(mixed, val)
    setting = dial_setting(mixed)
    clean = accuracy(setting)
    card["figures"] = {"val": {"images": len(val), "clean": clean}}
    mixed.save_pretrained(folder, hold=hold, card=card)
    accuracy.save(folder / VALIDATION)
    console.print(
        f"\n{100 * clean:.2f} % clean accuracy on {len(val):,} validation images, at {accuracy.dial} {setting:.4g}. "
        f"Written to {folder}.",
        soft_wrap=True,
    )
    console.print(f"Attack it with: adaptive-smoothing evaluate {folder} --preset adaptive", soft_wrap=True)


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


def _recipe(path: Path | None, changes: list[str], threat: Threat, scale: float, name: str) -> MixingRecipe:
    if path is not None:
        return read_toml(path, MixingRecipe, changes)
    if changes:
        raise ValueError("expected --set with --recipe, got no recipe: start from one of recipes/mixing-*.toml")
    return replace(default_recipe(threat, f"mixing-{name}"), standard_scale=scale)


def _nonlinear(
    g: nn.Module,
    h: nn.Module,
    val: ImageData,
    threat: Threat,
    wanted: dict[str, float],
    card: dict[str, Any],
    console: Console,
) -> MixedClassifier:
    with TimeBar(console) as bar:
        target = wanted["clean_accuracy"]
        mixed, setting = fit_nonlinear(g, h, val, threat, clean_accuracy=target, say=lambda text: bar.say(text, None))
    card["transform"] = asdict(setting)
    return mixed


def _dialled(
    mixed: MixedClassifier, val: ImageData, threat: Threat, wanted: dict[str, float], search: bool, console: Console
) -> MixedClassifier:
    if "alpha" in wanted:
        return turned(mixed, wanted["alpha"])
    if "clean_accuracy" in wanted and not search:
        return tune(mixed, val, clean_accuracy=wanted["clean_accuracy"])
    with TimeBar(console) as bar:
        bar.say(f"attacking {min(len(val), ATTACKED):,} validation images, again and again", None)
        options: dict[str, Any] = {"threat": threat, "attacked": ATTACKED, "say": console.print}
        return tune(mixed, val, **options | wanted)


def _check_folder(folder: Path, replaces: bool) -> None:
    if (folder / FILE).exists() and not replaces:
        raise FileExistsError(
            f"expected a folder without a mixture, got {folder}, which holds one: choose another --out, or replace it "
            "with --overwrite"
        )
