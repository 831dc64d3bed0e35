"""`adaptive-smoothing export MODEL`: write a model as ONNX or .pt2, or an evaluation as an entry of RobustBench."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import screen, show_alarms
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.evaluation.alarms import Alarm
from adaptive_smoothing.mixing.export import FORMATS, Exported, Shape, find_format
from adaptive_smoothing.mixing.export import export as export_model
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels
from adaptive_smoothing.report.robustbench import AUTOATTACK, Publication, folder_of, missing, model_info
from adaptive_smoothing.report.robustbench_loader import is_loader, loader_text
from adaptive_smoothing.results import check_new_file, write_json, write_text
from adaptive_smoothing.runs.folder import read_result
from adaptive_smoothing.settings.tables import changed

ROBUSTBENCH = "robustbench"
SUFFIXES = {**FORMATS, ROBUSTBENCH: ".json"}


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL | G | RUN", help="A model, G of a mixture G H, or an evaluation's folder.")
    ],
    robust: Annotated[str | None, typer.Argument(metavar="H", help="The robust model of a mixture G H.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Default weight of H in a mixture G H.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"File to write: {', '.join(SUFFIXES.values())}; default: model.onnx.")
    ] = None,
    format: Annotated[str | None, typer.Option(help=f"{', '.join(SUFFIXES)}; default: from the file's name.")] = None,
    shape: Annotated[str | None, typer.Option(help="Channels, height, width of the images: 3x32x32.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    changes: Annotated[list[str], opt.set_option(Publication, "venue=arXiv")] = [],  # noqa: B006
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Write a model as ONNX or .pt2 with alpha as an input, or an evaluation as an entry of RobustBench."""
    out = out or _default_file(format)
    format = find_format(out, format, SUFFIXES)
    check_new_file(out, overwrite=overwrite)
    if format == ROBUSTBENCH:
        given = {"H": robust, "--alpha": alpha, "--shape": shape, "--mean": mean, "--std": std, "--size": size}
        _check_unused(given)
        _write_entry(Path(model), out, changed(Publication(), changes), OwnModels(loader), overwrite=overwrite)
        return
    if changes:
        raise ValueError(f"expected --set with --format {ROBUSTBENCH} only, got it with {format}: leave it out")
    own, sizes = opt.own_models(loader, mean, std, size), _shape(shape)
    loaded = LoadedModel.load(model, robust, alpha, "cpu", own)
    written = export_model(loaded.model, out, shape=sizes, format=format, name=loaded.short, overwrite=overwrite)
    _show(written, screen())


def _default_file(format: str | None) -> Path:
    stem = "model_info" if format == ROBUSTBENCH else "model"
    return Path(stem + SUFFIXES.get(format or "onnx", ""))


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
    if "alpha" in facts["defaults"] and facts["alpha_range"] != [0, 1]:
        low, high = facts["alpha_range"]
        console.print(f"From 0 to 1, alpha gives h a weight of {low:g} to {high:g}: the alpha_range of the mixture.")
    checked = "onnxruntime" if written.format == "onnx" else "torch.export"
    console.print(f"Compared with PyTorch in {checked}: the largest difference is {written.difference:.1g}.")
    print_result({"path": str(written.path), "difference": written.difference, **facts})


def _check_unused(given: dict[str, Any]) -> None:
    if unused := [name for name, value in given.items() if value is not None]:
        found = f"also {', '.join(unused)}: leave them out, because the evaluation was made before"
        raise ValueError(f"expected a run folder alone for --format {ROBUSTBENCH}, got {found}")


def _write_entry(run: Path, out: Path, publication: Publication, own: OwnModels, *, overwrite: bool) -> None:
    """Write the entry of a run, and next to it a Python file that loads the model."""
    if out.suffix.lower() != SUFFIXES[ROBUSTBENCH]:
        raise ValueError(f"expected a file that ends in .json for {ROBUSTBENCH}, got {str(out)!r}: rename it")
    result, console, loader = read_result(run, "evaluation"), screen(), out.with_suffix(".py")
    info, place = model_info(result, publication), folder_of(result)
    _check_loader(loader, overwrite=overwrite)
    text, about_loader = _loader_text(result, loader, own)
    loader.unlink(missing_ok=True)  # before the entry, so that no interruption leaves the loader of another one
    write_json(out, info)
    if text:
        write_text(loader, text)
    console.print(f"Written to {out}, which belongs in {place} of RobustBench.", markup=False, soft_wrap=True)
    console.print(about_loader, markup=False, soft_wrap=True)
    if empty := missing(info):
        console.print(f"Add {', '.join(empty)} with --set, for example --set {empty[0]}=...", markup=False)
    if AUTOATTACK not in info:
        console.print(f"RobustBench also needs {AUTOATTACK}, from a run with --attack standard.", markup=False)
    show_alarms(console, None if result["alarms"] is None else [*map(Alarm.from_summary, result["alarms"])])
    print_result(info)


def _check_loader(path: Path, *, overwrite: bool) -> None:
    """Raise an error if there is a file in the place of the loader: only an older loader may be replaced."""
    if path.is_file() and not is_loader(path):
        hint = "choose another name for the entry, because its loader gets the same name"
        raise FileExistsError(f"expected no file or a loader at {path}, got a file that is not one: {hint}")
    check_new_file(path, overwrite=overwrite)


def _loader_text(result: dict[str, Any], path: Path, own: OwnModels) -> tuple[str, str]:
    """Return the text of a file with `load_model()` and a sentence about it; "" and the reason if there is none."""
    try:
        text = loader_text(result, own)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        removed = f" The old {path} was removed: it loads the model of another entry." if path.exists() else ""
        return "", f"There is no {path} that loads the model: {error}.{removed}"
    return text, f"Written to {path}: load_model() returns the model for benchmark() of RobustBench."
