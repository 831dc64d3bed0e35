"""The reference of the command line: every verb with its arguments, options and settings, read from the program."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from adaptive_smoothing.certification.options import METHODS
from adaptive_smoothing.cli import shared
from adaptive_smoothing.cli.main import VERBS, load
from adaptive_smoothing.cli.mix_options import MixOptions
from adaptive_smoothing.cli.sweep import SweepOptions
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.report.robustbench import Publication
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.recipe import Recipe

# The dataclasses that `--set` of a verb changes. A verb that is missing here has the names in the help of its option.
SETTINGS: dict[str, tuple[type[Any], ...]] = {
    "train": (Recipe,),
    "mix": (MixOptions, MixingRecipe),
    "sweep": (SweepOptions,),
    "evaluate": (EvaluationOptions,),
    "certify": tuple(METHODS.values()),
    "export": (Publication,),
}


def verbs() -> str:
    """Return the reference of all verbs in Markdown."""
    commands = {name: load(name) for name in VERBS}
    common = [each for each in next(iter(commands.values())).params if is_shared(each)]
    parts = ["## Options of every verb", "", *_options(common), ""]
    for name, command in commands.items():
        parts += [f"## {name}", "", VERBS[name], "", "```", _usage(name, command), "```", ""]
        parts += [*_options([each for each in command.params if not is_shared(each)]), ""]
        for settings in SETTINGS.get(name, ()):
            parts += _settings(name, settings)
    return "\n".join(parts).rstrip() + "\n"


def is_shared(parameter: Any) -> bool:
    """Return whether every verb has this option."""
    return getattr(parameter, "rich_help_panel", None) == shared.PANEL


def _usage(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not _is_option(each)]
    words = [each.metavar or each.name.upper() for each in arguments]
    shown = [
        word if each.required or word.startswith("[") else f"[{word}]"
        for word, each in zip(words, arguments, strict=True)
    ]
    return " ".join(["adaptive-smoothing", name, *shown, "[OPTIONS]"])


def _is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def _options(parameters: list[Any]) -> list[str]:
    """Return the rows of a table: arguments and options with values, defaults and help."""
    rows = [(_names(each), _value(each), _default(each), each.help or "") for each in parameters]
    return _table(("argument or option", "value", "default", "meaning"), rows) if rows else ["No options of its own."]


def _names(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"`{(parameter.metavar or parameter.name.upper()).replace('|', 'or')}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _value(parameter: Any) -> str:
    """Return what an option expects: nothing for a flag."""
    if not _is_option(parameter) or parameter.is_flag:
        return ""
    if parameter.metavar:
        return parameter.metavar.replace("|", " or ")
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    name, low, high = NAMES.get(getattr(kind, "__name__", ""), "text"), parameter.min, parameter.max
    if low is not None and high is not None:
        return f"{name} from {low:g} to {high:g}"
    return name if low is None else f"{name} ≥ {low:g}"


# Settings whose defaults are written as a number of the 255 levels of a pixel.
RADII = ("eps", "radius_step")
NAMES = {"int": "whole number", "float": "number", "Path": "path", "str": "text"}


def _default(parameter: Any) -> str:
    return "required" if parameter.required else _shown(parameter.default)


def _shown(value: Any) -> str:
    """Return a default as it is typed on the command line; empty for none."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or value is False or value in ((), [], {}, ""):
        return ""
    if isinstance(value, bool):
        return "`true`"
    return f"`{value:.4g}`" if isinstance(value, float) else f"`{value}`"


def _settings(verb: str, cls: type[Any]) -> Iterator[str]:
    """Yield what `--set` accepts for a dataclass: its own fields, then those of the dataclasses in it."""
    yield from (f"### {verb} --set: {cls.__name__}", "", _without_args(cls), "")
    yield from _fields(cls, "")


def _fields(cls: type[Any], prefix: str) -> Iterator[str]:
    hints, meanings = get_type_hints(cls), _meanings(cls)
    plain = [field for field in fields(cls) if not is_dataclass(hints[field.name])]
    rows = [(f"`{prefix}{each.name}`", _kind(hints[each.name]), *_facts(each, meanings)) for each in plain]
    yield from (*_table(("key", "value", "default", "meaning"), rows), "")
    for field in fields(cls):
        if is_dataclass(inner := hints[field.name]):
            yield from (f"**`{prefix}{field.name}`**: {_without_args(inner)}", "")
            yield from _fields(inner, f"{prefix}{field.name}.")


def _facts(field: Field[Any], meanings: dict[str, str]) -> tuple[str, str]:
    given = field.default is MISSING and field.default_factory is MISSING
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    shown = f"`{255 * default:.2g}/255`" if field.name in RADII else "`false`" if default is False else _shown(default)
    return "required" if given else shown, meanings.get(field.name, "")


def _kind(hint: Any) -> str:
    """Return the kind of a value; a default of None is shown as no default."""
    names = [each.strip() for each in (getattr(hint, "__name__", None) or str(hint)).split("|")]
    if names in (["Union"], ["UnionType"]):
        names = [getattr(each, "__name__", str(each)) for each in hint.__args__]
    words = {**NAMES, "bool": "`true` or `false`", "dict": "table", "list": "list", "tuple": "list"}
    return " or ".join(words.get(name, name) for name in names if name != "NoneType" and name != "None")


def _documentation(cls: type[Any]) -> tuple[str, str]:
    """Return the text of a docstring before `Args:`, and the text after it."""
    text, _, arguments = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")
    return text.strip(), textwrap.dedent(arguments)


def _without_args(cls: type[Any]) -> str:
    return _documentation(cls)[0]


def _meanings(cls: type[Any]) -> dict[str, str]:
    """Return the meaning of each field, from the `Args:` of the class and of the classes that it extends."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        for names, text in re.findall(r"^(\w[\w, ]*): (.*(?:\n +.*)*)", _documentation(each)[1], re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [columns, tuple("---" for _ in columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
