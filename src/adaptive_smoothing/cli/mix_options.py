"""Modes, targets and settings of `mix`: how they are read from the command line, and which go together."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

from adaptive_smoothing.cli.options import as_share
from adaptive_smoothing.settings.tables import changed, read_toml
from adaptive_smoothing.threat import Threat, parse_threat
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.recipe import check_at_least


class Mode(StrEnum):
    """How alpha is chosen: one for all images, one per image by a trained mixer, or by MixedNUTS."""

    fixed = "fixed"
    adaptive = "adaptive"
    nonlinear = "nonlinear"


@dataclass(frozen=True)
class MixOptions:
    """Settings of `mix` that `--set` changes, next to the keys of a recipe.

    Args:
        attacked: validation images to attack, in a search and at the end. Default 1,000; on a CPU 100 in a search and
            none at the end.
        search: attack other scales as well, and take the most robust one with the same clean accuracy.
        standard_scale: factor of the logits of G; default: that of the recipe, or 3.
        compiled: compile the models in training; by default on CUDA only.
    """

    attacked: int | None = None
    search: bool = False
    standard_scale: float | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if self.attacked is not None:
            check_at_least(0, attacked=self.attacked)
        if self.standard_scale is not None and self.standard_scale <= 0:
            raise ValueError(
                f"expected a positive standard_scale, got {self.standard_scale:g}: G's logits are multiplied by it"
            )


@dataclass(frozen=True)
class Target:
    """The accuracy or the alpha that a mixture is to have: `clean_accuracy`, `robust_accuracy` or `alpha` by `name`."""

    name: str
    value: float

    @property
    def clean_accuracy(self) -> float | None:
        return self.value if self.name == "clean_accuracy" else None


@dataclass(frozen=True)
class MixRequest:
    """What the options of `mix` ask for, after the checks that need no model and no image.

    Args:
        reason: why the mode was chosen; empty if it was given.
        recipe: the file of `--recipe` with the changes of `--set`.
        changes: the changes of `--set` for a recipe.
        threat: that of `--threat`.
    """

    mode: Mode
    reason: str
    target: Target
    options: MixOptions
    recipe: MixingRecipe | None
    changes: list[str]
    threat: Threat | None


def read_request(
    mode: Mode | None,
    accuracies: tuple[float | None, float | None],
    alpha: float | None,
    threat: str | None,
    recipe: Path | None,
    changes: list[str],
    resume: bool,
    device: str,
) -> MixRequest:
    """Return what the options ask for, or raise an error if they do not go together.

    Args:
        accuracies: the wanted clean accuracy, and the wanted robust accuracy.
    """
    options, for_recipe = split_changes(changes)
    mode, reason = choose_mode(mode, device, alpha, training=bool(recipe or for_recipe or resume))
    target = read_target(mode, *accuracies, alpha)
    check_mode(mode, recipe, for_recipe, resume, options, target)
    named = read_toml(recipe, MixingRecipe, for_recipe) if recipe else None
    return MixRequest(mode, reason, target, options, named, for_recipe, parse_threat(threat) if threat else None)


def read_target(mode: Mode, clean: float | None, robust: float | None, alpha: float | None) -> Target:
    """Return the target that was given, or a clean accuracy of 90 % if none was given."""
    given = {"clean_accuracy": clean, "robust_accuracy": robust, "alpha": alpha}
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in found)
        raise ValueError(f"expected one target, got {names}: give one of them")
    if alpha is not None and mode is not Mode.fixed:
        raise ValueError(f"expected --alpha with --mode fixed, got --mode {mode}: give a --clean-accuracy instead")
    if robust is not None and mode is Mode.nonlinear:
        raise ValueError("expected --clean-accuracy with --mode nonlinear, got --robust-accuracy")
    if not found:
        return Target("clean_accuracy", 0.9)
    ((name, value),) = found.items()
    return Target(name, value if name == "alpha" else as_share(value))


def choose_mode(given: Mode | None, device: str, alpha: float | None, training: bool) -> tuple[Mode, str]:
    """Return the mode, and a sentence with the reason if it was not given. A CPU is too slow to train by default.

    Args:
        training: whether an option was given that only a training has.
    """
    if given is not None:
        return given, ""
    if alpha is not None:
        return Mode.fixed, ""
    if training:
        return Mode.adaptive, "Mode adaptive, because an option of the training was given."
    if device == "cpu":
        return Mode.fixed, "Mode fixed, the default on a CPU: one alpha for all images. --mode adaptive trains a mixer."
    return Mode.adaptive, "Mode adaptive, the default on a GPU: trains a mixer. --mode fixed takes seconds."


def split_changes(changes: list[str]) -> tuple[MixOptions, list[str]]:
    """Return the options of `mix`, and the changes that are left for the recipe.

    A misspelled key goes to the options if it resembles one of theirs, so that the error names the nearest key.
    """
    mine, theirs = ([field.name for field in fields(each)] for each in (MixOptions, MixingRecipe))
    for_options: list[str] = []
    for_recipe: list[str] = []
    for change in changes:
        key = re.split(r"[.=]", change)[0].strip()
        own = key in mine or (key not in theirs and get_close_matches(key, mine))
        (for_options if own else for_recipe).append(change)
    return changed(MixOptions(), for_options), for_recipe


def check_mode(
    mode: Mode, recipe: Path | None, changes: list[str], resume: bool, options: MixOptions, target: Target
) -> None:
    """Raise an error for an option that the mode does not use."""
    trained = {"--recipe": recipe, "--resume": resume, "--set compiled": options.compiled is not None}
    trained |= {f"--set {change}": True for change in changes}
    for name, given in trained.items():
        if given and mode is not Mode.adaptive:
            raise ValueError(f"expected {name} with --mode adaptive, got --mode {mode}, which trains nothing")
    if options.standard_scale is not None and mode is Mode.nonlinear:
        raise ValueError(
            "expected --set standard_scale with --mode fixed or adaptive, got --mode nonlinear, which always gives G "
            "full confidence"
        )
    if options.search and (mode is Mode.nonlinear or target.clean_accuracy is None):
        raise ValueError(
            "expected --set search=true with a --clean-accuracy and --mode fixed or adaptive, got "
            f"--{target.name.replace('_', '-')} and --mode {mode}: leave search out"
        )
