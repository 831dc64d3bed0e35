"""`adaptive-smoothing evaluate MODEL`: clean and robust accuracy of a model, image by image."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade, stage_title
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import RunProgressBar, TimeBar, print_report, print_run, screen
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.binarization import binarization_test
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.cost import Cost, measure_cost
from adaptive_smoothing.evaluation.evaluate import evaluate as evaluate_model
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.loading import LoadedModel, check_classes
from adaptive_smoothing.report.verdicts import WRITTEN, sentences, verdict_tables, write_verdict
from adaptive_smoothing.results import percent
from adaptive_smoothing.runs.folder import JOURNAL, environment, resumable_folder
from adaptive_smoothing.runs.journal import Journal, room_for
from adaptive_smoothing.settings import changed
from adaptive_smoothing.threat import parse_threat

BINARIZATION = "binarization"
# Images of the binarization test, by type of device; each takes some hundred passes.
BINARIZED = {"cuda": 64, "cpu": 8}


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL | G", help="A name from `models`, or a path; G of a mixture G H.")
    ],
    robust: Annotated[str | None, typer.Argument(metavar="H", help="The robust model of a mixture G H.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in a mixture G H.")] = None,
    name: Annotated[str, typer.Option("--preset", help=f"Attacks: {', '.join(PRESETS)}.")] = "fast",
    threat: opt.ThreatText = "Linf:8/255",
    data: opt.Data = "builtin",
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    images: opt.Images = None,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    device: opt.Devices = "auto",
    seed: opt.Seed = 0,
    check: Annotated[list[str], typer.Option("--check", help="A further check: binarization.")] = [],  # noqa: B006
    changes: Annotated[list[str], opt.set_option(EvaluationOptions, "precise=true")] = [],  # noqa: B006
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Measure clean and robust accuracy under a preset of attacks; an interrupted run can be continued."""
    cascade = preset(name, parse_threat(threat), seed=seed)
    options = changed(EvaluationOptions(), changes)
    for unknown in set(check) - {BINARIZATION}:
        raise ValueError(f"expected --check {BINARIZATION}, got {unknown!r}: there is no other check")
    devices = opt.pick_devices(device)
    loaded = LoadedModel.load(model, robust, alpha, devices[0], opt.own_models(loader, mean, std, size))
    chosen = datasets.load(data, split, root=data_root, download=download, images=images)
    check_classes(loaded.parts, chosen)
    applicable = cascade.for_model(loaded.model)
    folder = resumable_folder(out or Path("runs") / f"evaluate-{loaded.short}-{name}", overwrite)
    console, start = screen(), time.perf_counter()
    with TimeBar(console) as bar:
        verdict = evaluate_model(
            loaded.model,
            chosen,
            cascade,
            device=devices[0],
            devices=devices,
            journal=folder / JOURNAL,
            overwrite=overwrite,
            progress=RunProgressBar(bar),
            options=options,
        )
    costs = _costs(loaded, chosen, devices[0])
    facts = {"seconds": round(time.perf_counter() - start, 1), **environment(devices[0])}
    facts |= {"cost": {part: cost.summary() for part, cost in costs.items()}}
    if BINARIZATION in check:
        facts["binarization"] = _binarization(loaded.model, chosen, applicable, devices[0], console)
    with room_for(folder):
        write_verdict(folder, verdict, loaded.facts, facts)
    Journal(folder / JOURNAL).clear()
    left_out = [key for key in cascade.stage_keys if key not in applicable.stage_keys]
    _show(console, verdict, costs, left_out, folder)
    print_run(folder)


def _costs(loaded: LoadedModel, data: ImageData, device: str) -> dict[str, Cost]:
    """Return the cost of the model and, for a mixture, of the two models in it."""
    models = loaded.parts if len(loaded.parts) == 1 else {"mixture": loaded.model, **loaded.parts}
    shape = tuple(data.images.shape[1:])
    return {name: measure_cost(model, shape, device) for name, model in models.items()}


def _binarization(model: nn.Module, data: ImageData, cascade: Cascade, device: str, console: Console) -> dict[str, Any]:
    """Run the binarization test with the attacks of this run, print its outcome, and return it.

    Attacks on a view of the model, such as transfers, are skipped; if there are no others, PGD-50 is used.
    """
    part = data.take(slice(BINARIZED.get(torch.device(device).type, 64))).to(device)
    has_own = any(stage.source is None for stage in cascade.stages)
    found = binarization_test(model, part.floats(), part.labels, cascade.threat, cascade if has_own else None)
    outcome, attack = "no image could be tested.", cascade.name if has_own else "PGD-50"
    if found.attack_success is not None and found.random_success is not None:
        outcome = (
            f"on {found.images} images {attack} found the planted example in {percent(found.attack_success, 0)}, "
            f"random points in {percent(found.random_success, 0)}."
        )
    console.print(f"\nBinarization test {'passed' if found.passed else 'FAILED'}: {outcome}", markup=False)
    return {"attack": attack, **asdict(found), "passed": found.passed}


def _show(console: Console, verdict: Verdict, costs: dict[str, Cost], left_out: list[str], folder: Path) -> None:
    """Print the result, the alarms, the stages that were left out, and the names of the files."""
    print_report(console, sentences(verdict), verdict_tables(verdict, costs))
    console.print()
    for alarm in verdict.alarms or ():
        console.print(f"[yellow]alarm[/] {alarm.name}:", end=" ")
        console.print(f"{alarm.observation}; {alarm.advice}.", markup=False)
    if not verdict.alarms:
        console.print("Alarms were off." if verdict.alarms is None else "No alarm fired.")
    if left_out:
        titles = "; ".join(stage_title(key) for key in left_out)
        console.print(f"Attacks that do not apply to this model: {titles}.", markup=False)
    console.print(f"Written to {folder}: {', '.join(WRITTEN)}", markup=False, soft_wrap=True)
