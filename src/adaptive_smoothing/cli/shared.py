"""Options of every verb: `--json`, `--quiet` and `--memory`.

`print_result` prints the result of a verb if `--json` was given.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

PANEL = "Options of every verb"

# Where `print_result` writes; None without --json.
_result_stream: ContextVar[TextIO | None] = ContextVar("result_stream", default=None)


@contextmanager
def shared_options(
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=PANEL, help="Print the result as one JSON object, the rest on stderr."),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", rich_help_panel=PANEL, help="Print errors, warnings, downloads and the --json result only."
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", rich_help_panel=PANEL, help="Most memory to use on a GPU: 6G, ..."),
    ] = None,
) -> Iterator[None]:
    """Run a verb with the options that every verb has; to add one, add a parameter."""
    if memory is not None:
        from adaptive_smoothing.models.memory import limit_memory  # imports torch

        limit_memory(memory)
    stream = _result_stream.set(sys.stdout if as_json else None)
    try:
        with _standard_output(as_json, quiet):
            yield
    finally:
        _result_stream.reset(stream)


@contextmanager
def _standard_output(as_json: bool, quiet: bool) -> Iterator[None]:
    """Send everything that is printed, also by other libraries, to nowhere or to stderr."""
    shown = sys.stderr if as_json else sys.stdout
    with (
        Path(os.devnull).open("w", encoding="utf-8") if quiet else nullcontext(shown) as stream,
        redirect_stdout(stream),
    ):
        yield


def with_shared_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the function of a verb with the parameters of `shared_options` added to its own."""
    own, shared = (inspect.signature(each, eval_str=True) for each in (verb, shared_options))
    added = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shared.parameters.values()]

    @wraps(verb)
    def run(**given: Any) -> None:
        with shared_options(**{each.name: given.pop(each.name) for each in added}):
            verb(**given)

    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in inspect.signature(run).parameters.items()}
    return run


def print_result(result: dict[str, Any], folder: Path | None = None) -> None:
    """Print the result of a verb, and the folder it was written to, if --json was given."""
    if (stream := _result_stream.get()) is not None:
        written = {} if folder is None else {"folder": str(folder)}
        print(json.dumps(written | result, allow_nan=False), file=stream, flush=True)
