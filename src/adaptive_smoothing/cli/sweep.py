"""`adaptive-smoothing sweep G H`: accuracy against alpha, clean and under the STD, ROB and MIX attacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import choose, finish, measure_clean_accuracy, measure_tradeoff, screen, show
from adaptive_smoothing.cli.options import as_share
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.tradeoff import MIX_ALPHAS
from adaptive_smoothing.mixing.loading import check_classes, facts_of
from adaptive_smoothing.models.zoo import short_name
from adaptive_smoothing.report.tradeoff.report import Report
from adaptive_smoothing.report.tradeoff_run import write_run
from adaptive_smoothing.runs.folder import environment, make_folder
from adaptive_smoothing.runs.sharded import check_size
from adaptive_smoothing.settings.tables import changed
from adaptive_smoothing.threat import parse_number, parse_threat


@dataclass(frozen=True)
class SweepOptions:
    """Settings of a sweep that `--set` changes.

    Args:
        steps: steps of PGD.
        batch_size: images per batch; default 1000, on a CPU 50.
    """

    steps: int = 20
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)


def sweep(
    standard: opt.Standard,
    robust: opt.Robust,
    alphas: Annotated[str | None, typer.Option(help="Alphas at which to attack the mixture: 0,0.5,0.9,1.")] = None,
    wanted: opt.CleanAccuracy = None,
    threat: opt.ThreatText = "Linf:8/255",
    data: opt.Data = "builtin",
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    images: opt.Images = None,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    device: opt.Device = "auto",
    changes: Annotated[list[str], opt.set_option(SweepOptions, "steps=50")] = [],  # noqa: B006
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Measure the mixture of two models at every alpha, clean and under three attacks."""
    options, mix_alphas, where = changed(SweepOptions(), changes), parse_alphas(alphas), opt.pick_device(device)
    attack = PGD(parse_threat(threat), steps=options.steps)
    target = None if wanted is None else as_share(wanted)
    if target is not None and split != "test":
        raise ValueError(
            f"expected --split test with --clean-accuracy, got {split}: alpha is chosen on val and measured on test"
        )
    g, h = opt.own_models(loader, mean, std, size).load([standard, robust], where)
    models = {"g": facts_of(g), "h": facts_of(h)}
    chosen = datasets.load(data, split, root=data_root, download=download, images=images)
    check_classes({standard: g, robust: h}, chosen)
    default_out = Path("runs") / f"sweep-{short_name(standard)}-{short_name(robust)}"
    folder = make_folder(out or default_out, overwrite=overwrite)
    batch = options.batch_size or (50 if where == "cpu" else 1000)
    console, start, choice = screen(), time.perf_counter(), None
    if target is not None:
        val = datasets.load(data, "val", root=data_root)
        accuracy = measure_clean_accuracy(g, h, val, batch_size=batch, folder=folder, console=console)
        choice = choose(accuracy, target, console)
        mix_alphas = sorted({*mix_alphas, choice.alpha})
    run, interrupted = measure_tradeoff(g, h, chosen, attack, mix_alphas=mix_alphas, batch_size=batch, console=console)
    seconds = round(time.perf_counter() - start, 1)
    facts = {"models": models, "seconds": seconds, "interrupted": interrupted, "batch_size": batch}
    report = Report(run, choice=choice, facts={**facts, **environment(where)})
    show(console, report)
    finish(console, write_run(folder, report, f"Mixing {standard} and {robust}"), interrupted)


def parse_alphas(text: str | None) -> list[float]:
    """Return the alphas in a list such as `0,0.5,0.9,1`, sorted and without repetitions; by default `MIX_ALPHAS`."""
    if text is None:
        return list(MIX_ALPHAS)
    try:
        found = sorted({parse_number(part) for part in text.split(",")})
    except ValueError as error:
        raise ValueError(f"expected --alphas such as 0,0.5,0.9,1, got {text!r}") from error
    if not 0 <= found[0] <= found[-1] <= 1:
        raise ValueError(f"expected --alphas in [0, 1] (0 is G, 1 is H), got {text!r}")
    return found
