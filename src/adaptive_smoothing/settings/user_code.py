"""Functions of the user and of other packages: imported by name, checked, and with their errors explained."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from adaptive_smoothing.settings.checks import suggestion


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
        hint = "change its parameters, or write a function of these that calls it"
        raise ValueError(f"expected {expected}, got {found}: {hint}") from error


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
        own = tuple(_places_of(text))
        stack = traceback.extract_tb(error.__traceback__)
        steps = [*itertools.dropwhile(lambda step: not step.filename.startswith(own), stack)]
        if not steps:
            raise
        last = next(step for step in reversed(steps) if step.filename.startswith(own))
        found = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"
        explained = ValueError(f"expected {expected} from {text}, got {found}")
        explained.add_note(f"Traceback of {text}:\n{''.join(traceback.format_list(steps))}".rstrip())
        raise explained from error


def _places_of(text: str) -> Iterator[str]:
    """Yield where the code of `module:function` is: the files of its module and of the one that defines the function.

    The place of a package is its folder.
    """
    name, _, attribute = text.partition(":")
    module = sys.modules.get(name)
    for each in {name, getattr(getattr(module, attribute, None), "__module__", name)}:
        if file := getattr(sys.modules.get(each), "__file__", None):
            yield str(Path(file).parent if Path(file).name == "__init__.py" else file)


def from_packages(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register in a group of entry points of this package, by name.

    Nothing is imported before `load` of an entry point is called.
    """
    return {point.name: point for point in entry_points(group=f"adaptive_smoothing.{group}")}


def load_registered(point: EntryPoint) -> Any:
    """Return what an installed package registers, or raise an error that names the package."""
    try:
        return point.load()
    except Exception as error:  # the module of another package can raise any error
        owner = f"the package {point.dist.name}" if point.dist else "a package"
        found = f"{type(error).__name__}: {error}"
        hint = "repair that package, or remove it"
        expected = f"{point.name!r}, which {owner} registers as {point.value}"
        raise ImportError(f"expected to import {expected}, got {found}; {hint}") from error
