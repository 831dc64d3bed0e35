"""Checks of arguments and texts, suggestions for misspelt names, and warnings that name the line of the user."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import typing
import warnings
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from pathlib import Path
from urllib.parse import parse_qsl


def suggestion(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return "did you mean ...?" with the `count` known names nearest to `name`, or all known names if none is near."""
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=count)
    return f"did you mean {', '.join(map(repr, nearest))}?" if nearest else f"choose one of {', '.join(known)}"


def similar_paths(path: Path) -> list[str]:
    """Return the sibling with the most similar name, as a list of at most one path."""
    inside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in difflib.get_close_matches(path.name, inside, n=1)]


def parse_query(text: str, known: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the name and the options in `NAME?key=value&key=value`. An unknown or repeated key is an error."""
    name, _, query = text.partition("?")
    # A plus sign in a path is not a space.
    given: dict[str, str] = {}
    for key, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
        if key not in known:
            hint = "" if key.isidentifier() else "; write & in a path as %26"
            raise ValueError(f"unknown option {key!r} in {text!r}: {suggestion(key, known)}{hint}")
        if key in given:
            raise ValueError(f"expected the option {key} once, got it twice in {text!r}: leave one out")
        given[key] = value
    if not name:
        raise ValueError(f"expected a name before the options, got {text!r}")
    return name, given


def parse_flag(name: str, text: str) -> bool:
    """Return whether an option is on: `1` or `true`, `0` or `false`."""
    if text.lower() not in ("0", "1", "true", "false"):
        raise ValueError(f"expected {name} as 0 or 1, got {text!r}: write {name}=1 or {name}=0")
    return text.lower() in ("1", "true")


def parse_size(name: str, text: str) -> int | tuple[int, int]:
    """Return a size in pixels: `224`, or `224x192` as (height, width)."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() and int(side) > 0 for side in sides):
        raise ValueError(f"expected {name} as 224, or as 224x192 for height and width, got {text!r}")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise an error if a setting has none of the values to choose from."""
    if value not in choices:
        nearest = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of these"
        raise ValueError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}: {hint}")


def check_number(**settings: object) -> None:
    """Raise an error if a setting is not a number of Python or NumPy, for example a text."""
    for name, value in settings.items():
        _check_real(name, value, value)


def as_number(name: str, value: object) -> float:
    """Return a number as one of Python, or raise an error. A tensor or an array with one number is a number."""
    number = value
    if callable(item := getattr(value, "item", None)):
        with contextlib.suppress(RuntimeError, ValueError, TypeError):  # several numbers, or none
            number = item()
    _check_real(name, number, value)
    return typing.cast(float, number)


def _check_real(name: str, number: object, given: object) -> None:
    if isinstance(number, bool) or not isinstance(number, Real):
        hint = "write a number such as 0.5, without quotes" if isinstance(given, str) else "pass a number"
        raise TypeError(f"expected {name} as a number, got {given!r}: {hint}")


def check_whole(**settings: object) -> None:
    """Raise an error if a setting is not a whole number; None stands for a default."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral | None):
            quoted = isinstance(value, str)
            hint = "write a number such as 20, without quotes" if quoted else "pass a whole number such as 20"
            raise TypeError(f"expected {name} as a whole number, got {value!r}: {hint}")


def check_count(**settings: object) -> None:
    """Raise an error if a setting is not a whole number of at least 1."""
    check_whole(**settings)
    check_at_least(1, **typing.cast(dict[str, float], settings))


def check_list(each: str, **settings: object) -> None:
    """Raise an error if a setting is not a list, or another iterable, of what `each` says; one text is not a list."""
    for name, value in settings.items():
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"expected {name} as a list of {each}, got {value!r}: write [{value!r}] for one")


def check_numbers(name: str, values: object) -> list[float]:
    """Return the numbers of a list, a tensor or another iterable as a list, or raise an error."""
    values = values.tolist() if hasattr(values, "tolist") else values
    check_list("numbers", **{name: values})
    return [as_number(f"each of {name}", value) for value in typing.cast(Iterable[object], values)]


def check_path(**settings: object) -> None:
    """Raise an error if a setting is neither a path nor a name."""
    for name, value in settings.items():
        if not isinstance(value, str | os.PathLike):
            raise TypeError(f"expected {name} as a path or a name, got {value!r}: pass a string or a pathlib.Path")


def check_options(options: object, *kinds: type) -> None:
    """Raise an error if options are of none of these dataclasses, for example a dictionary."""
    if not isinstance(options, kinds):
        expected, hint = " or ".join(kind.__name__ for kind in kinds), f"write {kinds[0].__name__}(name=value)"
        raise TypeError(f"expected options as {expected}, got {type(options).__name__}: {hint}")


def check_at_least(least: int, **settings: float) -> None:
    """Raise an error if a setting is smaller than `least`."""
    check_number(**settings)
    for name, value in settings.items():
        if not value >= least:
            raise ValueError(f"expected {name} of at least {least}, got {value}")


def check_below_one(name: str, value: float) -> None:
    """Raise an error if a setting is not in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"expected {name} in [0, 1), got {value}")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package: the first one outside it, which is the one a user can change."""
    package, level, frame = str(Path(__file__).parents[1]), 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((package, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
