"""Options that several verbs share, each declared once, and the functions that read their values."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from adaptive_smoothing.mixing.loading import OwnModels
from adaptive_smoothing.tuning.curves import VALIDATION as VALIDATION

Data = Annotated[
    str, typer.Option(help="Data set: builtin, cifar10, cifar100, hf:NAME, or a path; photographs: PATH?crop=224.")
]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the data set.")]
Download = Annotated[bool, typer.Option("--download", help="Download the data set if it is missing.")]
Split = Annotated[str, typer.Option(help="Part of the data set: test, val, train, or all for data without splits.")]
Images = Annotated[
    int | None, typer.Option(min=1, help="Use N images only: the first, or evenly spaced ones of image files.")
]
Out = Annotated[Path | None, typer.Option(help="Output folder; by default a folder in runs/ named after the command.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the output folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted training in the output folder.")]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, ...")]
Devices = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda, or several: cuda:0,cuda:1.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
ThreatText = Annotated[str, typer.Option("--threat", help="Norm and radius of the attack: Linf:8/255, L2:0.5, ...")]
CleanAccuracy = Annotated[
    float | None, typer.Option("--clean-accuracy", help="Choose alpha for this clean accuracy: 0.9, or 90.")
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
Standard = Annotated[str, typer.Argument(metavar="G", help="The accurate model: a name from `models`, or a path.")]
Robust = Annotated[str, typer.Argument(metavar="H", help="The robust model.")]

_OWN = "Models of your own"
Loader = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Your function from a name to a model; or several that a mixture names: A,B.",
        rich_help_panel=_OWN,
    ),
]
Mean = Annotated[
    str | None, typer.Option(help="Mean of their training images: 0.485,0.456,0.406.", rich_help_panel=_OWN)
]
Std = Annotated[str | None, typer.Option(help="Standard deviation of these images.", rich_help_panel=_OWN)]
Size = Annotated[str | None, typer.Option(help="Size of images that they accept: 224.", rich_help_panel=_OWN)]


def own_models(loader: str | None, mean: str | None, std: str | None, size: str | None) -> OwnModels:
    """Return how to load models that are not those of this package."""
    given = {"mean": mean, "std": std, "size": size}
    return OwnModels(loader, {name: value for name, value in given.items() if value is not None})


def set_option(settings: type[Any], example: str, *more: str) -> Any:
    """Return the repeatable option `--set KEY=VALUE`, whose help names the fields of a settings dataclass."""
    *names, last = [*(field.name for field in fields(settings)), *more]
    return typer.Option("--set", metavar="KEY=VALUE", help=f"Change {', '.join(names)} or {last}: --set {example}.")


def pick_device(name: str) -> str:
    """Return a device of this machine; `auto` is the GPU if there is one."""
    found = devices()
    if name == "auto":
        return "cuda" if "cuda" in found else "cpu"
    if name not in found:
        known = ", ".join(found)
        raise ValueError(f"expected a device of this machine ({known}) or auto, got {name!r}: name one of these")
    return name


def pick_devices(names: str) -> list[str]:
    """Return the devices of a list such as `cuda:0,cuda:1`."""
    return [pick_device(name) for name in names.split(",")]


def devices() -> list[str]:
    """Return the devices of this machine that torch can use."""
    gpus = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return ["cpu", *gpus * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]


def as_share(wanted: float) -> float:
    """Return an accuracy as a share: 0.9 and 90 mean the same."""
    if 0 < wanted <= 1:
        return wanted
    # A random guess among ten classes reaches ten percent. A smaller number is a typing error.
    if 10 < wanted <= 100:
        return wanted / 100
    raise ValueError(f"expected an accuracy such as 0.9, or 90 in percent, got {wanted:g}")
