"""Entry point of the command line: imports the verb that is called, and prints an error as one sentence."""

from __future__ import annotations

import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.cli.completion import options_only
from adaptive_smoothing.cli.shared import with_shared_options
from adaptive_smoothing.version import VERSION

# The first line of the help of each verb. With this list, `--help` imports none of them.
VERBS = {
    "demo": "Attack two mixtures of the package, g and h, in a minute or two on a CPU; writes an HTML page.",
    "train": "Train a base classifier: standard, at, trades, hat, dajat, iaat or gaussian.",
    "mix": "Mix two models into one, with a wanted clean or robust accuracy.",
    "sweep": "Measure the mixture of two models at every alpha, clean and under three attacks.",
    "evaluate": "Measure clean and robust accuracy under a preset of attacks; an interrupted run can be continued.",
    "certify": "Certify how far each image can be moved with the same prediction; an interrupted run can be continued.",
    "report": "Write one page that compares runs: slider, images, charts, tables; it opens offline.",
    "export": "Write a model as ONNX or .pt2 with alpha as an input, or an evaluation as an entry of RobustBench.",
    "app": "Attack an image in a browser, step by step, and move alpha; the page stays on this machine.",
    "models": "List the models and mixtures of the package and of the zoo, with the accuracies on their cards.",
    "doctor": "Check this installation: versions, devices, memory, folders, optional packages, and what to do.",
}
SHORT_HELP = {"help_option_names": ["-h", "--help"]}


class Verbs(TyperGroup):
    """Imports the file of a verb when the verb is called, and prints how to continue after Ctrl-C."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        # A shell that completes a word needs the options of the verb, and calls nothing.
        return name, load(str(name), options_only(str(name), find) if ctx.resilient_parsing else None), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            with _without_interrupts():
                _errors().print(f"[yellow]stopped[/]: {_after_stop(ctx.invoked_subcommand, stop)}")
            raise typer.Exit(INTERRUPTED) from None


def load(verb: str, function: Callable[..., None] | None = None) -> Any:
    """Return the command of a verb, made from its function."""
    alone = typer.Typer(add_completion=False, context_settings=SHORT_HELP)
    alone.command(verb)(function or find(verb))
    return typer.main.get_command(alone)


def find(verb: str) -> Callable[..., None]:
    """Return the function of a verb, which is in the file of that name, with the options of every verb."""
    return with_shared_options(getattr(import_module(f"adaptive_smoothing.cli.{verb}"), verb))


app = typer.Typer(
    name="adaptive-smoothing",
    help="Mix an accurate and a robust image classifier into one, and measure its accuracy and robustness.",
    cls=Verbs,
    no_args_is_help=True,
    context_settings=SHORT_HELP,
    pretty_exceptions_enable=False,
)


def _not_imported() -> None:
    """Placeholder of a verb in the list of verbs. `Verbs` imports the verb itself."""


for verb, line in VERBS.items():
    app.command(verb, help=line)(_not_imported)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"adaptive-smoothing {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command. An error that the user can fix is printed as one sentence on stderr, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show α shows a question mark.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # Batch systems send SIGTERM before they kill a process. It ends a run like Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.showwarning = _show_warning
    try:
        app(standalone_mode=True)
    except (ValueError, OSError, RuntimeError, ImportError, TypeError) as error:
        if isinstance(error, TypeError) and not is_explained(error):
            raise
        # Messages contain [0, 1] and shapes, which rich would read as markup.
        _errors().print(f"[red]error[/]: {escape(str(error))}")
        for note in getattr(error, "__notes__", ()):  # the traceback of a user's own function
            _errors().print(f"\n{note}", markup=False, soft_wrap=True)
        sys.exit(1)


def is_explained(error: TypeError) -> bool:
    """Return whether a message says what was expected, what was given and what to do, as those of this package do.

    Errors of Python itself, such as "pop expected at most 1 argument, got 2", report a defect.
    """
    return re.search(r"(^|: )expected .+, got .+: ", str(error), re.DOTALL) is not None


def _show_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Print a warning as one sentence on stderr. Where it was raised does not help a user of the command line.

    What a library says to programmers who use it does not help either.
    """
    if issubclass(category, DeprecationWarning | FutureWarning):
        return
    _errors().print(f"[yellow]warning[/]: {escape(str(message))}", soft_wrap=True)


def _errors() -> Console:
    return Console(stderr=True, highlight=False, emoji=False)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside of the context: users often press it twice."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _after_stop(verb: str | None, stop: KeyboardInterrupt) -> str:
    if verb in ("demo", "evaluate", "certify"):
        return "run the same command again to continue"
    if verb in ("train", "mix"):
        from adaptive_smoothing.training.options import Stopped

        if isinstance(stop, Stopped):
            return "run the same command with --resume to continue from the last checkpoint"
        return "there is no checkpoint to --resume from yet: run the same command again"
    return "there is no result yet; run the same command again"


if __name__ == "__main__":
    main()
