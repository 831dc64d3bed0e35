"""The command line: one file a verb. This one gathers them and turns errors into sentences."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from adaptive_smoothing.cli import INTERRUPTED
from adaptive_smoothing.version import VERSION

# The first line of each verb's own help, so that the list of verbs needs none of their imports.
VERBS = {
    "demo": "Tell the whole story on the models and images inside the package, in under three minutes.",
    "train": "Train a base classifier: standard, at, trades, iaat or gaussian.",
    "mix": "Mix two models into one artifact with a wanted clean or robust accuracy.",
    "sweep": "Measure the mixture of two models at every alpha, clean and under three attacks.",
    "evaluate": "Measure clean and robust accuracy with attacks that can be defended; goes on where it was stopped.",
    "certify": "Certify how far each image can be moved with the same prediction; an interrupted run can be continued.",
    "models": "List the models and mixtures of the package and of the zoo, with what their cards say of them.",
}


class Verbs(TyperGroup):
    """Lists the verbs by name and line, and reads the file of the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        return TyperCommand(cmd_name, help=VERBS[cmd_name]) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _errors().print(f"[yellow]stopped[/]: {_after_stop(ctx.invoked_subcommand, stop)}")
            raise typer.Exit(INTERRUPTED) from None


def load(verb: str) -> Any:
    """The command of a verb: the function of that name in the file of that name."""
    alone = typer.Typer(add_completion=False)
    alone.command(verb)(getattr(import_module(f"adaptive_smoothing.cli.{verb}"), verb))
    return typer.main.get_command(alone)


app = typer.Typer(
    name="adaptive-smoothing",
    help="Mix an accurate and a robust image classifier into one that is both, and measure it honestly.",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"adaptive-smoothing {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and stop")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run; what a person can mend is one sentence on stderr, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without α shows a question mark.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # What a batch system sends before it kills: an end like that of Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        # Messages hold [0, 1] and shapes, which are no markup.
        _errors().print(f"[red]error[/]: {escape(str(error))}")
        sys.exit(1)


def _errors() -> Console:
    return Console(stderr=True, highlight=False)


def _after_stop(verb: str | None, stop: KeyboardInterrupt) -> str:
    if verb in ("evaluate", "certify"):
        return "the same command goes on from here"
    if verb in ("train", "mix"):
        from adaptive_smoothing.training.loop import Stopped

        saved = isinstance(stop, Stopped)
        return "the same command with --resume goes on from here" if saved else "nothing new was saved"
    return "there is no result yet"


if __name__ == "__main__":
    main()
