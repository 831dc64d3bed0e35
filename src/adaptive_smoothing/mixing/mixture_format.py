"""The entries of `mixture.json`, which are checked before anything is loaded; `pretrained` says what they mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_smoothing.mixing.transforms import TRANSFORMS
from adaptive_smoothing.settings.checks import check_choice, suggestion

FORMAT = 1
ROLES = ("standard", "robust")
# The numbers that mix two classifiers: arguments of `MixedClassifier`.
NUMBERS = ("alpha_range", "alpha_scale", "alpha_shift", "standard_scale", "robust_scale")
_NUMBER = int | float


def check(description: Mapping[str, Any], file: Path) -> None:
    """Raise an error if the content of a file is not that of a mixture."""
    if (found := description.get("format")) != FORMAT:
        hint = "it was written by another version"
        raise ValueError(f"expected a mixture of format {FORMAT} in {file}, got format {found!r}: {hint}")
    mixture = _Entries(description, "", file)
    mixture.check_only(format=int, **dict.fromkeys(ROLES, dict), alpha=_NUMBER | dict, numbers=dict, card=dict)
    for role in ROLES:
        _check_base(mixture.inside(role))
    if isinstance(description["alpha"], dict):
        mixture.inside("alpha").check(kind=str, options=dict, sha256=str)
    numbers = mixture.inside("numbers")
    numbers.check_only(**{**dict.fromkeys(NUMBERS, _NUMBER), "alpha_range": list})
    numbers.check_list("alpha_range", _NUMBER, 2)


def damaged(place: str, file: Path, found: str) -> ValueError:
    """Return the error for an entry of a mixture that cannot be read."""
    hint = "it was damaged or written by hand; save_pretrained writes it"
    return ValueError(f"expected {place!r} of a mixture in {file}, got {found}: {hint}")


@dataclass(frozen=True)
class _Entries:
    """The entries of an object in the file. `prefix` is the place of the object, such as "standard.build."."""

    values: Mapping[str, Any]
    prefix: str
    file: Path

    def check(self, **kinds: Any) -> None:
        """Raise an error if an entry is missing or of another type."""
        for name, kind in kinds.items():
            if name not in self.values:
                raise damaged(self.prefix + name, self.file, "nothing")
            if not _is(value := self.values[name], kind):
                raise damaged(self.prefix + name, self.file, repr(value))

    def check_optional(self, **kinds: Any) -> None:
        """Raise an error if an entry is of another type. It may be missing."""
        self.check(**{name: kind for name, kind in kinds.items() if name in self.values})

    def check_only(self, **kinds: Any) -> None:
        """Raise an error if an entry is missing, of another type, or unknown: then it suggests the nearest name."""
        for name in sorted(self.values.keys() - kinds.keys()):
            place = f"{self.prefix + name!r} of a mixture in {self.file}"
            raise ValueError(f"unknown entry {place}: {suggestion(name, kinds)}")
        self.check(**kinds)

    def check_list(self, name: str, kind: Any, length: int | None = None) -> None:
        """Raise an error if an entry is not a list of this type, and of this length if given. It may be missing."""
        if name not in self.values:
            return
        self.check(**{name: list})
        values = self.values[name]
        if length not in (None, len(values)) or not all(_is(value, kind) for value in values):
            raise damaged(self.prefix + name, self.file, repr(values))

    def check_shape(self, length: int | None = 3) -> None:
        """Raise an error if "shape" does not have so many positive whole numbers, or any. It may be missing."""
        self.check_list("shape", int, length)
        if min(self.values.get("shape", [1]), default=0) < 1:
            raise damaged(self.prefix + "shape", self.file, repr(self.values["shape"]))

    def inside(self, name: str) -> _Entries:
        """Return the entries of an object in this one, or raise an error if there is none."""
        self.check(**{name: dict})
        return _Entries(self.values[name], f"{self.prefix}{name}.", self.file)


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type. To Python a bool is an int; a file may hold NaN and infinite numbers."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return False
    return isinstance(value, kind)


def _check_base(base: _Entries) -> None:
    found = base.values.keys()
    if "transform" in found:
        check_choice("the transform of a base classifier", kind := str(base.values["transform"]), TRANSFORMS)
        base.inside("options").check_only(**dict.fromkeys(TRANSFORMS[kind].OPTIONS, _NUMBER))
        _check_base(base.inside("of"))
        return
    base.check_optional(name=str, held=str, type=str, weights=str, sha256=str)
    # Older versions stored no identity, but a name, a file with a card, or a digest of weights.
    if "identity" in found or "build" in found or not found & {"name", "held", "weights"}:
        _check_identity(base.inside("identity"))
    if "build" in found:
        _check_build(base.inside("build"))
    if {"held", "build"} <= found:
        base.check(sha256=str)


def _check_identity(identity: _Entries) -> None:
    identity.check(weights=str, preprocessing=list)
    identity.check_optional(state=dict)
    identity.check_list("preprocessing", dict)
    identity.check_shape(None)
    identity.check_list("logits", _NUMBER)
    identity.check_list("larger", _NUMBER)


def _check_build(build: _Entries) -> None:
    if "wrap" in build.values:
        _check_wrap(build.inside("wrap"))
        _check_build(build.inside("of"))
    elif "arch" in build.values:
        build.check(arch=str, options=dict)
    elif "library" in build.values:
        build.check(library=str)
        build.check_optional(config=dict)
    else:
        build.check(function=str, arguments=list)


def _check_wrap(wrap: _Entries) -> None:
    wrap.check(shape=list, num_classes=int, output=str | int | None)
    wrap.check_shape()
    wrap.check_list("size", int, 2)
    wrap.check_list("mean", _NUMBER)
    wrap.check_list("std", _NUMBER)
