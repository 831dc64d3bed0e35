"""Shell completion of the options of a verb in a fraction of a second.

To import a verb takes seconds, because it imports torch. So its options are stored in the cache when they are first
completed, and read from there until a file of the command line changes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from adaptive_smoothing.version import VERSION, cache_folder

# The name of a parameter, whether it is an argument, its spellings, its type as a word or its choices, and its help.
Described = dict[str, Any]


def options_only(verb: str, find: Callable[[str], Callable[..., None]]) -> Callable[..., None]:
    """Return a function that does nothing, with the parameters of a verb; `find` imports the verb if need be."""
    folder = cache_folder() / "completion"
    path, code = folder / f"{verb}.json", _code()
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(path.read_text())
        if stored["code"] == code:
            return _stub(stored["options"])
    described = [_describe(each) for each in inspect.signature(find(verb), eval_str=True).parameters.values()]
    with suppress(OSError):  # without a cache, completion works slowly
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"code": code, "options": described}))
    return _stub(described)


def _code() -> str:
    """Return a text that changes with the version and the files of the command line."""
    return f"{VERSION} {max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob('*.py'))}"


def _describe(parameter: inspect.Parameter) -> Described:
    """Return what completion needs to know about a parameter of a verb."""
    kind, info = get_args(parameter.annotation)[:2]
    kinds = [each for each in (get_args(kind) or (kind,)) if each is not type(None)]
    # In an annotation, the first spelling takes the place of the default.
    spellings = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    described: Described = {"name": parameter.name, "argument": isinstance(info, typer.models.ArgumentInfo)}
    described |= {"spellings": spellings, "help": info.help, "type": "text"}
    if get_origin(kind) is list:
        described["type"] = "list"
    elif kinds[0] is bool:
        described["type"] = "flag"
    elif isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
        described["type"] = [each.value for each in kinds[0]]
    return described


def _stub(described: list[Described]) -> Callable[..., None]:
    """Return a function with these parameters, all of which may be left out."""

    def stub(**given: Any) -> None:
        """Do nothing: completion calls no verb."""

    parameters = [_parameter(each) for each in described]
    stub.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    stub.__annotations__ = {each.name: each.annotation for each in parameters}
    return stub


def _parameter(described: Described) -> inspect.Parameter:
    known = {"text": str, "list": list[str], "flag": bool}
    kind, default = described["type"], False if described["type"] == "flag" else None
    annotation = known[kind] if isinstance(kind, str) else Enum("Choice", {each: each for each in kind})
    make = typer.Argument if described["argument"] else typer.Option
    info = make(*described["spellings"], help=described["help"])
    return inspect.Parameter(
        described["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )
