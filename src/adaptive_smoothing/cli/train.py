"""`adaptive-smoothing train RECIPE.toml`: train a base classifier from its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.results import percent
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.train_base import train_base

# Titles of the figures of a card, in the order in which they are printed.
TITLES = {"clean": "clean", "pgd20": "PGD-20", "smoothed": "smoothed"}


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, for example recipes/resnet18-robust.toml.")],
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe: --set optimizer.epochs=3."),
    ] = [],  # noqa: B006
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    out: opt.Out = None,
    resume: opt.Resume = False,
    device: opt.Device = "auto",
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile the model; by default on CUDA only.")
    ] = None,
    test_images: Annotated[
        int | None, typer.Option(min=0, help="Test images to measure on; by default all, 0 for none.")
    ] = None,
) -> None:
    """Train a base classifier: standard, at, trades, hat, dajat, iaat or gaussian."""
    settings = read_toml(recipe, Recipe, changes)
    options = TrainingOptions(
        out or Path("runs") / settings.name,
        device=opt.pick_device(device),
        compiled=compiled,
        resume=resume,
    )
    with options.stops_with_checkpoint():
        card = train_base(settings, options, root=data_root, download=download, test_images=test_images)
    console = screen()
    for split, row in card["figures"].items():
        shown = "   ".join(f"{title} {percent(row[key], 2)}" for key, title in TITLES.items() if key in row)
        console.print(f"{split:5} {row['images']:6} images   {shown}")
    console.print(f"Trained for {card['seconds']:.0f} s. Written to {options.folder}.")
    print_result({"name": settings.name, **card}, options.folder)
