"""The command line: one file a verb. This one gathers them and turns errors into sentences."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from adaptive_smoothing.cli import demo, models, sweep, train

INTERRUPTED = 130

app = typer.Typer(
    name="adaptive-smoothing",
    help="Mix an accurate and a robust image classifier into one that is both, and measure it honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("models")(models.models)


def main() -> None:
    """Run; what a person can mend is one sentence on stderr, not a traceback."""
    errors = Console(stderr=True, highlight=False)
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        # typer turns Ctrl-C into this status, without a word
        if end.code == INTERRUPTED:
            errors.print(f"[yellow]stopped[/]: {_after_stop(sys.argv[1:2])}")
        raise
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        # Messages hold [0, 1] and shapes, which are no markup.
        errors.print(f"[red]error[/]: {escape(str(error))}")
        sys.exit(1)


def _after_stop(verb: list[str]) -> str:
    if verb == ["train"]:
        return "the same command with --resume goes on from here"
    return "there is no result yet"


if __name__ == "__main__":
    main()
