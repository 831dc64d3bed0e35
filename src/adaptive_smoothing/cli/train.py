"""`adaptive-smoothing train RECIPE.toml`: a base classifier from its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.settings import read_toml
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import train_base


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, for example recipes/resnet18-robust.toml")],
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME")] = None,
    change: Annotated[list[str], typer.Option("--set", help="Change a key, for example optimizer.epochs=3")] = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run folder's checkpoint")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Default: on CUDA")] = None,
    test_images: Annotated[
        int | None, typer.Option(min=0, help="Measure on so many test images; 0 for a candidate; default all")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar")] = False,
) -> None:
    """Train a base classifier: standard, at, trades, iaat or gaussian."""
    settings = read_toml(recipe, Recipe, change)
    folder = out or Path("runs") / settings.name
    card = train_base(
        settings,
        folder,
        device=pick_device(device),
        root=data_root,
        download=download,
        resume=resume,
        compiled=compiled,
        quiet=quiet,
        test_images=test_images,
    )
    console = Console(highlight=False)
    words = {"clean": "clean", "pgd20": "PGD-20", "smoothed": "smoothed"}
    for split, row in card["figures"].items():
        shown = "   ".join(f"{word} {100 * row[key]:.2f} %" for key, word in words.items() if key in row)
        console.print(f"{split:5} {row['images']:6} images   {shown}")
    console.print(f"{card['seconds']:.0f} s of training; everything is in {folder}")
