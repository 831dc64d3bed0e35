"""`adaptive-smoothing evaluate MODEL`: clean and robust accuracy, image by image, by attacks that can be defended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.adaptive import PRESETS, preset
from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.printing import TimeBar, screen
from adaptive_smoothing.cli.sweep import check_classes, short
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.binarization import binarization_test
from adaptive_smoothing.evaluation.cost import Cost, measure_cost
from adaptive_smoothing.evaluation.journal import BINDING, Journal, room_for
from adaptive_smoothing.evaluation.judging import judge
from adaptive_smoothing.evaluation.sharded import Progress
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing import artifact
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import environment, model_facts
from adaptive_smoothing.report.folder import make_folder
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.report.verdicts import WRITTEN, sentences, verdict_tables, write_verdict
from adaptive_smoothing.threat import NORMS, Threat, parse_number

JOURNAL = "journal"
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
    cascade = preset(name, threat_of(norm, eps), seed=seed)
    _check_checks(check)
    devices = [pick_device(part) for part in device.split(",")]
    subject = Subject.load(model, robust, alpha, devices[0])
    everything = datasets.load(data, split, root=data_root, download=download)
    check_classes(subject.parts, everything)
    suited = cascade.for_model(subject.model)
    chosen = everything.take(min(images or len(everything), len(everything)))
    folder = run_folder(out or Path("runs") / f"evaluate-{subject.short}-{name}", overwrite)
    console, started = screen(), time.perf_counter()
    with TimeBar(console) as bar:
        verdict = judge(
            subject.model,
            chosen,
            cascade,
            device=devices[0],
            devices=devices if len(devices) > 1 else (),
            journal=folder / JOURNAL,
            overwrite=overwrite,
            watch=Watching(bar),
            batch_size=batch_size,
            shard_size=shard_size,
            compiled=compiled,
            precise=precise,
            with_alarms=alarms,
        )
    costs = subject.costs(chosen, devices[0])
    facts = {"seconds": round(time.perf_counter() - started, 1), **environment(devices[0])}
    facts |= {"cost": {part: cost.summary() for part, cost in costs.items()}}
    if BINARIZATION in check:
        facts["binarization"] = _binarization(subject.model, chosen, suited, devices[0], console)
    with room_for(folder):
        write_verdict(folder, verdict, subject.facts, facts)
    Journal(folder / JOURNAL).clear()
    left_out = [stage for stage in cascade.stage_names if stage not in suited.stage_names]
    _show(console, verdict, costs, left_out, folder)


@dataclass(frozen=True)
class Subject:
    """The model that is evaluated, and what it is made of."""

    model: nn.Module
    parts: dict[str, nn.Module]
    facts: dict[str, Any]
    short: str

    @classmethod
    def load(cls, model: str, robust: str | None, alpha: float | None, device: str) -> Subject:
        if (robust is None) != (alpha is None):
            raise ValueError("expected G, H and --alpha for a mixture, or one MODEL alone, got only some of the three")
        if robust is None and artifact.exists(model):
            return cls._of_mixture(model, device)
        loaded = zoo.load(model, device=device)
        if robust is None or alpha is None:
            return cls(loaded, {model: loaded}, {"model": model_facts(model)}, short(model))
        other = zoo.load(robust, device=device)
        mixed = MixedClassifier(loaded, other, alpha).to(device)
        facts = {"g": model_facts(model), "h": model_facts(robust), "alpha": alpha}
        return cls(mixed, {model: loaded, robust: other}, facts, f"{short(model)}-{short(robust)}-{alpha:g}")

    @classmethod
    def _of_mixture(cls, name: str, device: str) -> Subject:
        mixed = MixedClassifier.from_pretrained(name, device=device)
        description = artifact.read(artifact.find(name))
        facts = {
            "mixture": short(name),
            **{key: description[key] for key in ("standard", "robust", "alpha", "numbers")},
        }
        return cls(mixed, {"g": mixed.standard, "h": mixed.robust}, facts, short(name))

    def costs(self, data: ImageData, device: str) -> dict[str, Cost]:
        named = self.parts if len(self.parts) == 1 else {"mixture": self.model, **self.parts}
        shape = tuple(data.images.shape[1:])
        return {name: measure_cost(model, shape, device) for name, model in named.items()}


@dataclass
class Watching:
    """Images left, the accuracy so far, and the time left as the pace of this process has it."""

    bar: TimeBar
    word: str = "robust"
    began: float | None = None
    start: float = field(default_factory=time.perf_counter)
    working: bool = False

    def __call__(self, progress: Progress) -> None:
        # Shards out of the journal, which name no stage, take no time and say nothing about the pace.
        idle, self.working = not (progress.stage or self.working), bool(progress.stage)
        if self.began is None or idle or progress.finished <= self.began:
            self.began, self.start = progress.finished, time.perf_counter()
        gone, left = progress.finished - self.began, progress.images - progress.finished
        rest = (time.perf_counter() - self.start) / gone * left if gone else None
        so_far = "" if progress.robust is None else f", {self.word} so far {100 * progress.robust:.1f} %"
        doing = f", {progress.stage}" if progress.stage else ""
        self.bar.say(f"{int(left + 0.999):,} images left{so_far}{doing}", rest)


def threat_of(norm: str, eps: str) -> Threat:
    kinds = {known.lower(): kind for known, kind in NORMS.items()}
    if norm.lower() not in kinds:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {norm!r}: for example --norm L2 --eps 0.5")
    try:
        return kinds[norm.lower()](parse_number(eps))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"expected a radius such as 8/255 or 0.5, got {eps!r}: {error}") from error


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


def run_folder(folder: Path, overwrite: bool) -> Path:
    """The run folder, new or one to go on in: a run is over when its journal is gone."""
    unfinished = (folder / JOURNAL / BINDING).is_file()
    return folder if unfinished and not overwrite else make_folder(folder, overwrite=overwrite)


def _show(console: Console, verdict: Verdict, costs: dict[str, Cost], left_out: list[str], folder: Path) -> None:
    for text in sentences(verdict):
        console.print(f"\n{text}", markup=False)
    for table in verdict_tables(verdict, costs):
        console.print()
        console.print(rich_table(table))
    console.print()
    for alarm in verdict.alarms or ():
        console.print(f"[yellow]alarm[/] {alarm.name}:", end=" ")
        console.print(f"{alarm.saw}; {alarm.advice}.", markup=False)
    if not verdict.alarms:
        console.print("Alarms were off." if verdict.alarms is None else "No alarm fired.")
    if left_out:
        console.print(f"Left out, as they are for other models: {', '.join(left_out)}.", markup=False)
    console.print(f"Written to {folder}: {', '.join(WRITTEN)}", markup=False, soft_wrap=True)
