"""Dataclasses that are read from TOML. An unknown key is an error that suggests the nearest key."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from adaptive_smoothing.settings.checks import suggestion
from adaptive_smoothing.threat import parse_number

T = TypeVar("T")


class SettingsError(ValueError):
    """A settings file or a change of a setting is invalid."""


def read_text(path: Path) -> str:
    """Return the text of a file of the user, in UTF-8 with or without a mark at its beginning."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected a text in UTF-8 in {path}, got other bytes ({error}): save it as UTF-8") from error


def read_toml(path: str | Path, cls: type[T], changes: Sequence[str] = ()) -> T:
    """Return the dataclass `cls` read from a TOML file, with changes such as `optimizer.epochs=3` applied."""
    path = Path(path)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"choose one of {', '.join(near)}" if near else "check the path"
        raise SettingsError(f"expected a settings file at {path}, got none: {hint}")
    return from_table(cls, _with_changes(_parse(read_text(path), str(path)), changes), where=str(path))


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
