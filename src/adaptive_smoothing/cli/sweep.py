"""`adaptive-smoothing sweep G H`: accuracy against alpha under the STD, ROB and MIX attacks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli.console import TimeBar, finish, screen, show
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.target import VALIDATION, as_share, choose
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.budget import Deadline, gather
from adaptive_smoothing.evaluation.tradeoff import (
    MIX_ALPHAS,
    Tradeoff,
    attack_count,
    join,
    tradeoff_parts,
)
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts, short_name
from adaptive_smoothing.report.run_folder import write_run
from adaptive_smoothing.report.sentences import Choice, Report
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.runs.folder import make_folder
from adaptive_smoothing.threat import parse_number, parse_threat
from adaptive_smoothing.tuning.curves import accuracy_curve


def sweep(
    standard: Annotated[str, typer.Argument(metavar="G", help="The accurate model: see `models`, or a path")],
    robust: Annotated[str, typer.Argument(metavar="H", help="The robust model")],
    data: Annotated[str, typer.Option(help="builtin, cifar10, cifar100, or a path")] = "builtin",
    split: Annotated[str, typer.Option(help="test, val, or all for images that were never split")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="The first so many images; default all")] = None,
    threat: Annotated[str, typer.Option(help="Linf:8/255, L2:0.5, ...")] = "Linf:8/255",
    steps: Annotated[int, typer.Option(min=1, help="Steps of PGD")] = 20,
    wanted: Annotated[
        float | None,
        typer.Option("--clean-accuracy", help="Report the alpha that has it on validation images: 0.9, or 90"),
    ] = None,
    alphas: Annotated[str | None, typer.Option(help="Where the mixture is attacked, for example 0,0.5,0.9,1")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/sweep-G-H")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the folder")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Default 1000; on a CPU 50")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
) -> None:
    """Measure the mixture of two models at every alpha, clean and under three attacks."""
    attack, mix_alphas, where = PGD(parse_threat(threat), steps=steps), parse_alphas(alphas), pick_device(device)
    target = _target(wanted, split)
    g, h = (zoo.load(name, device=where) for name in (standard, robust))
    models = {"g": model_facts(standard), "h": model_facts(robust)}
    everything = datasets.load(data, split, root=data_root, download=download)
    check_classes({standard: g, robust: h}, everything)
    folder = make_folder(
        out or Path("runs") / f"sweep-{short_name(standard)}-{short_name(robust)}", overwrite=overwrite
    )
    chosen = everything.take(min(images or len(everything), len(everything)))
    size = batch_size or (50 if where == "cpu" else 1000)
    console, clock = screen(), Deadline(float("inf"))
    choice = None
    if target is not None:
        val = datasets.load(data, "val", root=data_root)
        choice = _choose(g, h, val, target, size, folder, console)
        mix_alphas = sorted({*mix_alphas, choice.alpha})
    with TimeBar(console) as bar:
        watch = Count(bar, attack_count(len(chosen), size, mix_alphas), "attacks on batches")
        parts = tradeoff_parts(g, h, chosen, attack, mix_alphas=mix_alphas, batch_size=size, progress=watch)
        run, interrupted = _collect(parts, console)
    facts = {"models": models, "seconds": round(clock.gone(), 1), "interrupted": interrupted, "batch_size": size}
    report = Report(run, choice=choice, facts={**facts, **environment(where)})
    show(console, report)
    finish(console, write_run(folder, report, f"Mixing {standard} and {robust}"), interrupted)


class Count:
    """Moves the bar as things of a kind get done."""

    def __init__(self, bar: TimeBar, total: int, kind: str) -> None:
        self.bar, self.clock, self.total, self.kind, self.done = bar, Deadline(float("inf")), total, kind, 0
        bar.say(f"{total:,} {kind}", None)

    def __call__(self, more: int) -> None:
        self.done += more
        rest = self.clock.gone() / self.done * (self.total - self.done)
        self.bar.say(f"{self.done:,} of {self.total:,} {self.kind}", rest)


def parse_alphas(text: str | None) -> list[float]:
    """`0,0.5,0.9,1` -> alphas, sorted, each once."""
    if text is None:
        return list(MIX_ALPHAS)
    try:
        found = sorted({parse_number(part) for part in text.split(",")})
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"expected alphas such as 0,0.5,0.9,1, got {text!r}") from error
    if not 0 <= found[0] <= found[-1] <= 1:
        raise ValueError(f"expected alphas in [0, 1] (0 is G, 1 is H), got {text!r}")
    return found


def _target(wanted: float | None, split: str) -> float | None:
    """Alpha is chosen on val: it can be reported on other images only."""
    if wanted is not None and split != "test":
        raise ValueError(
            f"expected --split test with --clean-accuracy, got {split}: alpha is chosen on val and reported on test"
        )
    return None if wanted is None else as_share(wanted)


def _choose(
    g: nn.Module, h: nn.Module, val: ImageData, target: float, size: int, folder: Path, console: Console
) -> Choice:
    """The alpha for a wanted clean accuracy; what it was read from stays in the run folder."""
    with TimeBar(console) as bar:
        count = Count(bar, len(val), "validation images predicted")
        accuracy = accuracy_curve(MixedClassifier(g, h, 0.5), val, batch_size=size, progress=count)
    accuracy.save(folder / VALIDATION)
    return choose(accuracy, target, console)


def _collect(parts: Iterable[Tradeoff], console: Console) -> tuple[Tradeoff, bool]:
    collected, interrupted = gather(parts)
    run = join(collected)
    if interrupted:
        console.print(f"[yellow]stopped[/]: the result is about the {run.images:,} images done until then")
    return run, interrupted
