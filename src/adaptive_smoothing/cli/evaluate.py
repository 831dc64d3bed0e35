"""`adaptive-smoothing evaluate MODEL`: clean and robust accuracy, image by image, by attacks that can be defended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.cli.console import TimeBar, screen
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.progress import Watching
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.binarization import binarization_test
from adaptive_smoothing.evaluation.cascade_run import evaluate_cascade
from adaptive_smoothing.evaluation.cost import Cost, measure_cost
from adaptive_smoothing.evaluation.options import EvaluationOptions
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.loading import LoadedModel, check_classes
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.report.verdicts import WRITTEN, sentences, verdict_tables, write_verdict
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.runs.folder import JOURNAL, resumable_folder
from adaptive_smoothing.runs.journal import Journal, room_for
from adaptive_smoothing.threat import make_threat

BINARIZATION = "binarization"
# Images of the binarization test, each of which is some hundred passes.
BINARIZED = {"cuda": 64, "cpu": 8}


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="See `models`, or a path; a mixture; G of G H")],
    robust: Annotated[str | None, typer.Argument(metavar="[H]", help="Mix MODEL with this robust one")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in the mixture")] = None,
    name: Annotated[str, typer.Option("--preset", help=", ".join(PRESETS))] = "fast",
    eps: Annotated[str, typer.Option(help="Radius: 8/255, 0.5, ...")] = "8/255",
    norm: Annotated[str, typer.Option(help="Linf or L2")] = "Linf",
    data: Annotated[str, typer.Option(help="builtin, cifar10, cifar100, or a path")] = "builtin",
    split: Annotated[str, typer.Option(help="test, val, or all for images that were never split")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="The first so many images; default all")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/evaluate-MODEL-PRESET")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another run has left there")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or several: cuda:0,cuda:1 or cpu,cpu")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Default 2048 small images; on a CPU 32")] = None,
    shard_size: Annotated[int | None, typer.Option(min=1, help="Images journalled together: 1000; CPU 32")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Default: for many images")] = None,
    precise: Annotated[bool, typer.Option("--precise", help="Attacks in full precision, not only verdicts")] = False,
    alarms: Annotated[bool, typer.Option("--alarms/--no-alarms", help="Look for signs of masked gradients")] = True,
    check: Annotated[list[str], typer.Option("--check", help="A further check: binarization")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Of all random numbers")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
) -> None:
    """Measure clean and robust accuracy with attacks that can be defended; goes on where it was stopped."""
    cascade = preset(name, make_threat(norm, eps), seed=seed)
    _check_checks(check)
    devices = [pick_device(part) for part in device.split(",")]
    subject = LoadedModel.load(model, robust, alpha, devices[0])
    everything = datasets.load(data, split, root=data_root, download=download)
    check_classes(subject.parts, everything)
    suited = cascade.for_model(subject.model)
    chosen = everything.take(min(images or len(everything), len(everything)))
    folder = resumable_folder(out or Path("runs") / f"evaluate-{subject.short}-{name}", overwrite)
    console, started = screen(), time.perf_counter()
    with TimeBar(console) as bar:
        verdict = evaluate_cascade(
            subject.model,
            chosen,
            cascade,
            device=devices[0],
            devices=devices if len(devices) > 1 else (),
            journal=folder / JOURNAL,
            overwrite=overwrite,
            progress=Watching(bar),
            options=EvaluationOptions(batch_size, shard_size, compiled, precise, alarms),
        )
    costs = _costs(subject, chosen, devices[0])
    facts = {"seconds": round(time.perf_counter() - started, 1), **environment(devices[0])}
    facts |= {"cost": {part: cost.summary() for part, cost in costs.items()}}
    if BINARIZATION in check:
        facts["binarization"] = _binarization(subject.model, chosen, suited, devices[0], console)
    with room_for(folder):
        write_verdict(folder, verdict, subject.facts, facts)
    Journal(folder / JOURNAL).clear()
    left_out = [stage for stage in cascade.stage_keys if stage not in suited.stage_keys]
    _show(console, verdict, costs, left_out, folder)


def _costs(loaded: LoadedModel, data: ImageData, device: str) -> dict[str, Cost]:
    named = loaded.parts if len(loaded.parts) == 1 else {"mixture": loaded.model, **loaded.parts}
    shape = tuple(data.images.shape[1:])
    return {name: measure_cost(model, shape, device) for name, model in named.items()}


def _check_checks(checks: list[str]) -> None:
    for unknown in set(checks) - {BINARIZATION}:
        raise ValueError(f"expected --check {BINARIZATION}, got {unknown!r}: there is no other check")


def _binarization(model: nn.Module, data: ImageData, cascade: Cascade, device: str, console: Console) -> dict[str, Any]:
    """Of the attacks of this run that are made on the model itself; where there are none, of PGD on the margin."""
    part = data.take(min(BINARIZED.get(torch.device(device).type, 64), len(data))).to(device)
    own = any(stage.source is None for stage in cascade.stages)
    found = binarization_test(model, part.floats(), part.labels, cascade.threat, cascade if own else None)
    said, attack = "no image could be tested.", cascade.name if own else "PGD-50"
    if found.attack_success is not None and found.random_success is not None:
        said = (
            f"on {found.images} images {attack} found the planted example in {100 * found.attack_success:.0f} %, "
            f"random points in {100 * found.random_success:.0f} %."
        )
    console.print(f"\nBinarization test {'passed' if found.passed else 'FAILED'}: {said}", markup=False)
    return {"attack": attack, **found.__dict__, "passed": found.passed}


def _show(console: Console, verdict: Verdict, costs: dict[str, Cost], left_out: list[str], folder: Path) -> None:
    for text in sentences(verdict):
        console.print(f"\n{text}", markup=False)
    for table in verdict_tables(verdict, costs):
        console.print()
        console.print(rich_table(table))
    console.print()
    for alarm in verdict.alarms or ():
        console.print(f"[yellow]alarm[/] {alarm.name}:", end=" ")
        console.print(f"{alarm.observation}; {alarm.advice}.", markup=False)
    if not verdict.alarms:
        console.print("Alarms were off." if verdict.alarms is None else "No alarm fired.")
    if left_out:
        console.print(f"Left out, as they are for other models: {', '.join(left_out)}.", markup=False)
    console.print(f"Written to {folder}: {', '.join(WRITTEN)}", markup=False, soft_wrap=True)
