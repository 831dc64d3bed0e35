"""`adaptive-smoothing export MODEL`: write a model as ONNX or .pt2, or an evaluation as an entry of RobustBench."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.mixing.export import FORMATS, Exported, Shape
from adaptive_smoothing.mixing.export import export as export_model
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.report.robustbench import Publication, folder_of, missing, write_model_info
from adaptive_smoothing.runs.folder import read_result
from adaptive_smoothing.settings import changed, check_choice

ROBUSTBENCH = "robustbench"
SUFFIXES = {**FORMATS, ROBUSTBENCH: ".json"}


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL | G | RUN", help="A model, G of a mixture G H, or an evaluation's folder.")
    ],
    robust: Annotated[str | None, typer.Argument(metavar="H", help="The robust model of a mixture G H.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Default weight of H in a mixture G H.")] = None,
    out: Annotated[Path, typer.Option(help=f"File to write: {', '.join(SUFFIXES.values())}.")] = Path("model.onnx"),
    format: Annotated[str | None, typer.Option(help=f"{', '.join(SUFFIXES)}; default: from the file's name.")] = None,
    shape: Annotated[str | None, typer.Option(help="Channels, height, width of the images: 3x32x32.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    device: opt.Device = "cpu",
    changes: Annotated[list[str], opt.set_option(Publication, "venue=arXiv")] = [],  # noqa: B006
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Write a model as ONNX or .pt2 with alpha as an input, or an evaluation as an entry of RobustBench."""
    format = format or next((name for name, suffix in SUFFIXES.items() if out.suffix == suffix), None)
    if format is None:
        expected = f"a file that ends in {', '.join(SUFFIXES.values())}"
        raise ValueError(f"expected {expected}, got {str(out)!r}: rename it, or add --format")
    check_choice("--format", format, SUFFIXES)
    if out.exists() and not overwrite:
        raise FileExistsError(f"expected a new file, got {out}, which exists: choose another --out, or add --overwrite")
    console = screen()
    if format == ROBUSTBENCH:
        _write_entry(Path(model), out, changed(Publication(), changes), console)
        return
    if changes:
        raise ValueError(f"expected --set with --format {ROBUSTBENCH} only, got it with {format}: leave it out")
    own = opt.own_models(loader, mean, std, size)
    loaded = LoadedModel.load(model, robust, alpha, opt.pick_device(device), own)
    written = export_model(loaded.model, out, shape=_shape(shape), format=format, name=loaded.short)
    _show(written, console)


def _shape(text: str | None) -> Shape | None:
    if text is None:
        return None
    if not (found := re.fullmatch(r"(\d+)[x,](\d+)[x,](\d+)", text)):
        raise ValueError(f"expected --shape as channels, height and width, such as 3x32x32, got {text!r}")
    channels, height, width = map(int, found.groups())
    return channels, height, width


def _show(written: Exported, console: Console) -> None:
    facts = written.facts
    size = " x ".join(map(str, facts["shape"]))
    console.print(
        f"Written to {written.path}: images of {size} in [0, 1] -> {facts['classes']} logits.", soft_wrap=True
    )
    for name, default in facts["defaults"].items():
        console.print(f"The input {name} moves it between g and h; default {default:g}.")
    checked = "onnxruntime" if written.format == "onnx" else "torch.export"
    console.print(f"Compared with PyTorch in {checked}: the largest difference is {written.difference:.1g}.")
    print_result({"path": str(written.path), "difference": written.difference, **facts})


def _write_entry(run: Path, out: Path, publication: Publication, console: Console) -> None:
    info = write_model_info(run, out, publication)
    place = folder_of(read_result(run))
    console.print(f"Written to {out}, which belongs in {place} of RobustBench.", markup=False, soft_wrap=True)
    if empty := missing(info):
        console.print(f"Add {', '.join(empty)} with --set, for example --set {empty[0]}=...", markup=False)
    print_result(info)
