"""The entries of `mixture.json`, which are checked before anything is loaded; `pretrained` says what they mean.

A specification is a type, a dictionary with the specification of each entry, a list with that of each element, a tuple
with those of all elements, or a function that returns one of these for an object. An entry `key?` may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from adaptive_smoothing.mixing.transforms import TRANSFORMS
from adaptive_smoothing.settings import check_choice, suggestion

FORMAT = 1
ROLES = ("standard", "robust")
# The numbers that mix two classifiers: arguments of `MixedClassifier`.
NUMBERS = ("alpha_range", "alpha_scale", "alpha_shift", "standard_scale", "robust_scale")


class Arguments(dict[str, Any]):
    """A specification of the arguments of a function: other entries are refused."""


def _mixture(found: Mapping[str, Any]) -> dict[str, Any]:
    mixer = {"kind": str, "options": dict, "sha256": str}
    alpha = mixer if isinstance(found.get("alpha"), dict) else _NUMBER
    return {**dict.fromkeys(ROLES, _base), "alpha": alpha, "numbers": _NUMBERS, "card": dict}


def _base(found: Mapping[str, Any]) -> dict[str, Any]:
    if "transform" in found:
        check_choice("the transform of a base classifier", kind := str(found["transform"]), TRANSFORMS)
        return {"options": Arguments.fromkeys(TRANSFORMS[kind].OPTIONS, _NUMBER), "of": _base}
    # Older versions stored no identity, but a name, a file with a card, or a digest of weights.
    older = "build" not in found and found.keys() & {"name", "held", "weights"}
    identity = {"identity?" if older else "identity": _IDENTITY}
    sha256 = {"sha256" if {"held", "build"} <= found.keys() else "sha256?": str}
    return {**dict.fromkeys(("name?", "held?", "type?", "weights?"), str), **sha256, **identity, "build?": _build}


def _build(found: Mapping[str, Any]) -> dict[str, Any]:
    if "wrap" in found:
        return {"wrap": _WRAP, "of": _build}
    if "arch" in found:
        return {"arch": str, "options": dict}
    return {"library": str, "config?": dict} if "library" in found else {"function": str, "arguments": list}


_NUMBER = int | float
_NUMBERS = Arguments({**dict.fromkeys(NUMBERS, _NUMBER), "alpha_range": (_NUMBER, _NUMBER)})
_IDENTITY = {"weights": str, "preprocessing": [dict], "shape?": [int], "logits?": [_NUMBER], "state?": dict}
_WRAP = {
    "shape": (int, int, int),
    "num_classes": int,
    "output": str | int | None,
    "mean?": [_NUMBER],
    "std?": [_NUMBER],
    "size?": (int, int),
}


def check(description: Mapping[str, Any], file: Path) -> None:
    """Raise an error if the content of a file is not that of a mixture."""
    if (found := description.get("format")) != FORMAT:
        hint = "it was written by another version"
        raise ValueError(f"expected a mixture of format {FORMAT} in {file}, got format {found!r}: {hint}")
    _check(description, _mixture, "", file)


def damaged(place: str, file: Path, found: str) -> ValueError:
    """Return the error for an entry of a mixture that cannot be read."""
    hint = "it was damaged or written by hand; save_pretrained writes it"
    return ValueError(f"expected {place!r} of a mixture in {file}, got {found}: {hint}")


def _check(value: Any, specification: Any, place: str, file: Path) -> None:
    if isinstance(specification, FunctionType):
        specification = specification(value) if isinstance(value, dict) else dict
    containers: dict[type, Any] = {dict: dict, Arguments: dict, list: list, tuple: list}
    # To Python a bool is an int.
    if not isinstance(value, containers.get(type(specification), specification)) or isinstance(value, bool):
        raise damaged(place, file, repr(value))
    if isinstance(specification, dict):
        _check_entries(value, specification, f"{place}." if place else "", file)
    elif isinstance(specification, list | tuple):
        parts = specification * len(value) if isinstance(specification, list) else specification
        if len(parts) != len(value):
            raise damaged(place, file, repr(value))
        for part, wanted in zip(value, parts, strict=True):
            _check(part, wanted, place, file)


def _check_entries(value: Mapping[str, Any], specification: Mapping[str, Any], prefix: str, file: Path) -> None:
    names = {key.removesuffix("?"): wanted for key, wanted in specification.items()}
    if isinstance(specification, Arguments) and (unknown := sorted(value.keys() - names)):
        raise ValueError(
            f"unknown entry {prefix + unknown[0]!r} of a mixture in {file}: {suggestion(unknown[0], names)}"
        )
    for name, wanted in names.items():
        if name in value:
            _check(value[name], wanted, prefix + name, file)
        elif name in specification:
            raise damaged(prefix + name, file, "nothing")
