"""Settings: dataclasses that are read from TOML, and checks of their values.

An unknown key is an error that suggests the nearest key.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import itertools
import sys
import tomllib
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from adaptive_smoothing.threat import parse_number

T = TypeVar("T")


class SettingsError(ValueError):
    """A settings file or a change of a setting is invalid."""


def read_toml(path: str | Path, cls: type[T], changes: Sequence[str] = ()) -> T:
    """Return the dataclass `cls` read from a TOML file, with changes such as `optimizer.epochs=3` applied."""
    path = Path(path)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"choose one of {', '.join(near)}" if near else "check the path"
        raise SettingsError(f"expected a settings file at {path}, got none: {hint}")
    return from_table(cls, _with_changes(_parse(path.read_text(), str(path)), changes), where=str(path))


def changed(settings: T, changes: Sequence[str]) -> T:
    """Return the settings with changes such as `optimizer.epochs=3` applied."""
    return from_table(type(settings), _with_changes(asdict(settings), changes))  # type: ignore[call-overload]


def from_table(cls: type[T], table: dict[str, Any], where: str = "settings") -> T:
    """Return `cls` built from nested tables, or raise an error for an unknown, missing or mistyped key.

    Files that were stored with old names keep loading. `cls` may have these class variables:

    - `OLD_KEYS` maps old names of keys to new ones.
    - `OLD_VALUES` maps old values of a key to new ones, by the new name of the key.
    - `RETIRED` maps each key that was removed to the only value of it that is still accepted.
    """
    table = _without_old_names(cls, table, where)
    hints = typing.get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise SettingsError(f"{where}: unknown key {key!r}; {suggestion(key, names)}")
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise SettingsError(f"{where}: missing key {field.name!r}")
    values = {key: _convert(hints[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from error


def suggestion(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return "did you mean ...?" with the `count` known names nearest to `name`, or all known names if none is near."""
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=count)
    return f"did you mean {', '.join(map(repr, nearest))}?" if nearest else f"choose one of {', '.join(known)}"


def similar_paths(path: Path) -> list[str]:
    """Return the path next to one that does not exist which has the most similar name, or none."""
    inside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in difflib.get_close_matches(path.name, inside, n=1)]


def parse_query(text: str, known: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the name and the options in `NAME?key=value&key=value`. An unknown or repeated key is an error."""
    name, _, query = text.partition("?")
    # A plus sign in a path is not a space.
    given: dict[str, str] = {}
    for key, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
        if key not in known:
            raise ValueError(f"unknown option {key!r} in {text!r}: {suggestion(key, known)}")
        if key in given:
            raise ValueError(f"expected the option {key} once, got it twice in {text!r}: leave one out")
        given[key] = value
    if not name:
        raise ValueError(f"expected a name before the options, got {text!r}")
    return name, given


def parse_flag(name: str, text: str) -> bool:
    """Return whether an option is on: `1` or `true`, `0` or `false`."""
    if text.lower() not in ("0", "1", "true", "false"):
        raise ValueError(f"expected {name} as 0 or 1, got {text!r}")
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


def check_at_least(least: int, **settings: float) -> None:
    """Raise an error if a setting is smaller than `least`."""
    for name, value in settings.items():
        if not value >= least:
            raise ValueError(f"expected {name} of at least {least}, got {value}")


def check_below_one(name: str, value: float) -> None:
    """Raise an error if a setting is not in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"expected {name} in [0, 1), got {value}")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package: the first one outside it, which is the one a user can change."""
    package, level, frame = str(Path(__file__).parent), 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((package, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def import_function(text: str, what: str) -> Callable[..., Any]:
    """Return the function `package.module:function` that a user names, for example on the command line.

    The working folder is searched as well. Never call this with a text that comes from a file: importing a module runs
    its code.

    Args:
        what: what the function is for, as in "expected --loader as module:function, ...".
    """
    name, colon, attribute = text.partition(":")
    if not (colon and attribute.isidentifier() and all(part.isidentifier() for part in name.split("."))):
        hint = "write the module, a colon and the name of the function, for example my_models:load"
        raise ValueError(f"expected {what} as module:function, got {text!r}: {hint}")
    if not hasattr(module := _import_module(name, what), attribute):
        public = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        found = f"{module.__name__} has no {attribute!r}; {suggestion(attribute, public)}"
        raise ValueError(f"expected {what} as module:function, got {text!r}: {found}")
    if not callable(function := getattr(module, attribute)):
        raise ValueError(
            f"expected {what} to be a function, got {text!r}, a {type(function).__name__}: name a function"
        )
    return function


def _import_module(name: str, what: str) -> types.ModuleType:
    """Import a module that a user names. The working folder is searched last, and stays on the path of modules."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ImportError(f"expected to import {name} for {what}, got {error}: install what it needs") from error
        hint = f"run in its folder ({Path.cwd()} is searched), install it, or correct the name"
        raise ImportError(f"expected a module {name!r} for {what}, got none: {hint}") from error
    except Exception as error:  # the user's module can raise any error
        found = f"{type(error).__name__}: {error}; correct the module"
        raise ImportError(f"expected to import {name} for {what}, got {found}") from error


def check_parameters(function: Callable[..., Any], names: Sequence[str], text: str, what: str) -> None:
    """Raise an error if a function of the user, `text`, cannot be called with one argument for each of the names."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python does not know the parameters of some functions that are written in C
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        expected, found = f"a function of ({', '.join(names)}) for {what}", f"{text}{signature}"
        raise ValueError(f"expected {expected}, got {found}: change its parameters") from error


@contextlib.contextmanager
def errors_in_user_code(text: str, expected: str) -> Iterator[None]:
    """Replace an error in the user's `module:function` by one that names the line; other errors are not changed.

    The traceback from the user's code on is a note of the new error (`add_note`).

    Args:
        expected: what the function should have returned.
    """
    try:
        yield
    except Exception as error:  # the user's code can raise any error
        file = Path(getattr(sys.modules[text.partition(":")[0]], "__file__", None) or "")
        own = str(file.parent if file.name == "__init__.py" else file)
        stack = traceback.extract_tb(error.__traceback__)
        steps = [*itertools.dropwhile(lambda step: not step.filename.startswith(own), stack)]
        if not steps:
            raise
        last = next(step for step in reversed(steps) if step.filename.startswith(own))
        found = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"
        explained = ValueError(f"expected {expected} from {text}, got {found}")
        explained.add_note(f"Traceback of {text}:\n{''.join(traceback.format_list(steps))}".rstrip())
        raise explained from error


def from_packages(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register in a group of entry points of this package, by name.

    Nothing is imported before `load` of an entry point is called.
    """
    return {point.name: point for point in entry_points(group=f"adaptive_smoothing.{group}")}


def _with_changes(table: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    for change in changes:
        _merge(table, _parse(_as_toml(change), change))
    return table


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where}: not valid TOML: {error}") from error


def _as_toml(change: str) -> str:
    """Return a change from the command line as TOML: a bare word or a fraction becomes a string."""
    key, separator, value = change.partition("=")
    if not separator:
        raise SettingsError(f"expected a change such as optimizer.epochs=3, got {change!r}")
    try:
        tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        value = f'"{value}"'
    return f"{key} = {value}"


def _merge(table: dict[str, Any], change: dict[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value


def _without_old_names(cls: type, table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the table with old names and values replaced, and without retired keys."""
    old_keys: dict[str, str] = getattr(cls, "OLD_KEYS", {})
    old_values: dict[str, dict[str, str]] = getattr(cls, "OLD_VALUES", {})
    retired: dict[str, object] = getattr(cls, "RETIRED", {})
    found: dict[str, Any] = {}
    for old, value in table.items():
        if old in retired:
            if value != retired[old]:
                hint = f"got {value!r}: others were removed; leave it out"
                raise SettingsError(f"{where}: expected {old} = {retired[old]!r}, {hint}")
            continue
        key = old_keys.get(old, old)
        if key in found:
            raise SettingsError(f"{where}: expected {key!r} once, got it also as {old!r}, its old name: leave one out")
        found[key] = old_values.get(key, {}).get(value, value) if isinstance(value, str) else value
    return found


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return the value of a key as the type of its field, or raise an error."""
    if is_dataclass(hint) and isinstance(value, dict):
        return from_table(typing.cast(type[Any], hint), value, where)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = [option for option in typing.get_args(hint) if option is not type(None)]
        # TOML has no None, but a recipe stored as JSON has.
        return None if value is None else _convert(hint, value, where)
    if hint is float and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:  # a number may be written as a fraction, such as the radius "8/255"
            return parse_number(value)
        except ValueError as error:
            raise SettingsError(f'{where}: expected a number such as 0.2 or "8/255", got {value!r}') from error
    origin = typing.get_origin(hint) or hint
    # To Python a bool is an int.
    if not isinstance(value, origin) or (isinstance(value, bool) and origin is not bool):
        raise SettingsError(f"{where}: expected {getattr(hint, '__name__', hint)}, got {value!r}")
    return value
