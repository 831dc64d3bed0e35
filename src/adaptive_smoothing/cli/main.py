"""The command line: one file a verb. This one gathers them and turns errors into sentences."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from adaptive_smoothing.cli import train

app = typer.Typer(
    name="adaptive-smoothing",
    help="Mix an accurate and a robust image classifier into one that is both, and measure it honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)


@app.callback()
def options() -> None:
    """Common to all verbs; keeps `train` a verb while it is alone."""


def main() -> None:
    """Run; what a person can mend is one sentence on stderr, not a traceback."""
    errors = Console(stderr=True, highlight=False)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        errors.print("[yellow]stopped[/]: the same command with --resume goes on from here")
        sys.exit(130)
    except (ValueError, FileNotFoundError, FileExistsError, RuntimeError, ImportError) as error:
        errors.print(f"[red]error[/]: {error}", markup=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
