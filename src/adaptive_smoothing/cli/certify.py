"""`adaptive-smoothing certify MODEL`: how far every image can be moved without another answer, with a proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adaptive_smoothing.certification import certify as certification
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.certifiers import METHODS, make_certifier
from adaptive_smoothing.certification.frontier import Frontier, chosen_alphas, with_alpha
from adaptive_smoothing.certification.sampling import PRECISIONS
from adaptive_smoothing.certification.smoothing import BOUNDS, RUNNERS_UP
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.cli.certify_model import CertifiedModel, CertifyPreparation
from adaptive_smoothing.cli.console import TimeBar, screen
from adaptive_smoothing.cli.options import pick_device
from adaptive_smoothing.cli.progress import RunProgress
from adaptive_smoothing.cli.target import as_share
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.models.facts import short_name
from adaptive_smoothing.report.certified import (
    FRONTIER_WRITTEN,
    WRITTEN,
    certified_frontier_table,
    certified_sentences,
    certified_table,
    write_certificates,
    write_frontier,
)
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.runs.folder import JOURNAL, resumable_folder
from adaptive_smoothing.runs.journal import Journal, room_for
from adaptive_smoothing.threat import make_threat

VOTES = ("hard", "soft")
# Options that are of one method alone, and those that make of h what it certifies.
OPTIONS = {
    "smoothing": (
        *("samples", "selection", "failure_probability", "bound", "runner_up", "radius"),
        *("theorem", "precision", "compiled", "seed", "batch_size"),
    ),
    "lipschitz": ("theorem",),
    "local": ("eps", "steps", "batch_size"),
}
PREPARING = {"smoothing": ("sigma", "votes")}
# Samples of each validation image, which are for its clean accuracy alone.
VALIDATION_SAMPLES = 256


def certify(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(metavar="MODEL | G H [H ...]", help="A model, or G and one or more H")],
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in the mixture, from 1/2 on")] = None,
    clean_accuracy: Annotated[
        float | None, typer.Option(help="Choose alpha for each H on val, and the best H for each radius: 0.8, or 80")
    ] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; by default what H is made for")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of smoothing; default: what H was trained with")] = None,
    votes: Annotated[str, typer.Option(help=f"What is averaged under noise: {' or '.join(VOTES)} votes")] = "hard",
    hardmax: Annotated[bool, typer.Option("--hardmax", help="Let G be certain of its prediction")] = False,
    radius: Annotated[float | None, typer.Option(help="Stop sampling as soon as this radius is decided")] = None,
    samples: Annotated[int, typer.Option(help="Samples of each image, at most")] = 10_000,
    selection: Annotated[int, typer.Option(help="Further samples that choose the class")] = 128,
    failure_probability: Annotated[float, typer.Option(help="Of each certificate, at most")] = 0.001,
    bound: Annotated[str | None, typer.Option(help=f"{', '.join(BOUNDS)}; by default what suits the votes")] = None,
    runner_up: Annotated[
        str | None, typer.Option(help=f"{' or '.join(RUNNERS_UP)}; by default what suits the votes")
    ] = None,
    theorem: Annotated[str, typer.Option(help="margin; weaker are the paper's: paper, lipschitz")] = "margin",
    precision: Annotated[str, typer.Option(help=f"Of smoothing: {', '.join(PRECISIONS)}")] = "float32",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile H; pays from 2e7 samples")] = False,
    norm: Annotated[str | None, typer.Option(help="L2, or Linf; local: default Linf")] = None,
    eps: Annotated[str, typer.Option(help="Radius of a local estimate")] = "8/255",
    steps: Annotated[int, typer.Option(min=1, help="Steps of PGD in a local estimate")] = 20,
    data: Annotated[str, typer.Option(help="builtin, cifar10, cifar100, or a path")] = "builtin",
    split: Annotated[str, typer.Option(help="test, val, or all for images that were never split")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="The first so many images; default all")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/certify-MODEL-METHOD")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another run has left there")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or several: cuda:0,cuda:1 or cpu,cpu")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples at a time: 4096; on a CPU 128")] = None,
    shard_size: Annotated[int | None, typer.Option(min=1, help="Images journalled together: 500; CPU 4")] = None,
    seed: Annotated[int, typer.Option(help="Of all random numbers")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
) -> None:
    """Certify how far each image can be moved without another answer; goes on where it was stopped."""
    _check_words(method, votes)
    threat = make_threat(norm or "Linf", eps)
    devices = [pick_device(part) for part in device.split(",")]
    wanted = _wanted(models, alpha, clean_accuracy, split)
    ways = CertifyPreparation(method, sigma, votes, hardmax)
    subjects = [CertifiedModel.prepare(pair, 1.0 if wanted else alpha, devices[0], ways) for pair in _pairs(models)]
    norm = threat.norm if norm else None
    if wanted is not None:
        _check_frontier(subjects, radius, norm)
    options = _options(context, subjects, norm, float(threat.eps))
    everything = datasets.load(data, split, root=data_root, download=download)
    for subject in subjects:
        check_classes(subject.parts, everything)
    chosen = everything.take(slice(images))
    run = Run(screen(), devices, options, norm, overwrite, shard_size)
    if wanted is None:
        run.alone(subjects[0], chosen, out or Path("runs") / f"certify-{subjects[0].short}-{subjects[0].kind}")
        return
    val = datasets.load(data, "val", root=data_root).take(slice(images))
    folder = out or Path("runs") / f"certify-{short_name(models[0])}-at-{100 * wanted:g}"
    run.frontier(subjects, val, chosen, folder, wanted, theorem)


def _check_words(method: str | None, votes: str) -> None:
    """Before anything is loaded."""
    if method is not None and method not in METHODS:
        raise ValueError(f"expected a method among {', '.join(METHODS)}, got {method!r}")
    if votes not in VOTES:
        raise ValueError(f"expected votes to be one of {', '.join(VOTES)}, got {votes!r}")


def _options(
    context: typer.Context, subjects: list[CertifiedModel], norm: str | None, eps: float
) -> dict[str, dict[str, Any]]:
    """Those of each method. What is refused is refused here, before anything is sampled."""
    _check_meant(context, {subject.kind for subject in subjects})
    options = {kind: {name: context.params[name] for name in names} for kind, names in OPTIONS.items()}
    options["local"]["eps"] = eps
    for subject in subjects:
        make_certifier(CertificationTarget.of(subject.model), subject.kind, norm, options[subject.kind])
    return options


def _check_meant(context: typer.Context, kinds: set[str]) -> None:
    """Whoever gives an option means it to count; a seed or a batch size, which decide nothing, may stay."""
    used = {name for kind in kinds for name in (*OPTIONS[kind], *PREPARING.get(kind, ()))} | {"seed", "batch_size"}
    written = {each.name: each.opts[0] for each in context.command.params}
    for name in dict.fromkeys(name for names in (*OPTIONS.values(), *PREPARING.values()) for name in names):
        source = context.get_parameter_source(name)
        if name not in used and source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"expected options of the method {' and '.join(sorted(kinds))}, got {written[name]}, which is of "
                "another: leave it out, or choose the method with --method"
            )


def _pairs(models: list[str]) -> list[tuple[str, ...]]:
    return [(models[0],)] if len(models) == 1 else [(models[0], h) for h in models[1:]]


def _wanted(models: list[str], alpha: float | None, clean_accuracy: float | None, split: str) -> float | None:
    """The clean accuracy that alpha is to be chosen for, if it is."""
    if clean_accuracy is None:
        if len(models) > 2:
            raise ValueError("expected --clean-accuracy with several H, got none: each has an alpha of its own for it")
        return None
    if len(models) < 2 or alpha is not None:
        raise ValueError("expected G and one or more H without --alpha for --clean-accuracy: alpha is what is chosen")
    if split != "test":
        raise ValueError(f"expected --split test with --clean-accuracy, got {split}: alpha is chosen on val")
    return as_share(clean_accuracy)


@dataclass(frozen=True)
class Run:
    """What all certifications of one command share."""

    console: Console
    devices: list[str]
    options: dict[str, dict[str, Any]]
    norm: str | None
    overwrite: bool
    shard_size: int | None

    def certify(self, subject: CertifiedModel, data: ImageData, folder: Path, **changes: Any) -> Certificates:
        """One model on some images, into its folder. Its journal stays, for a command that is not at its end."""
        folder = resumable_folder(folder, self.overwrite)
        started = time.perf_counter()
        with TimeBar(self.console) as bar:
            found = certification.certify(
                subject.model,
                data,
                method=subject.kind,
                norm=self.norm,
                device=self.devices[0],
                devices=self.devices if len(self.devices) > 1 else (),
                journal=folder / JOURNAL,
                overwrite=self.overwrite,
                watch=RunProgress(bar, "certified and right"),
                shard_size=self.shard_size,
                **{**self.options.get(subject.kind, {}), **changes},
            )
        facts = {"seconds": round(time.perf_counter() - started, 1), **environment(self.devices[0])}
        with room_for(folder):
            write_certificates(folder, found, subject.facts, facts)
        return found

    def alone(self, subject: CertifiedModel, data: ImageData, folder: Path) -> None:
        found = self.certify(subject, data, folder)
        Journal(folder / JOURNAL).clear()
        for text in certified_sentences(found):
            self.console.print(f"\n{text}", markup=False)
        if subject.kind != "local":
            self.console.print()
            self.console.print(rich_table(certified_table(found)))
        self.console.print(f"\nIn {folder}: {', '.join(WRITTEN)}", markup=False)

    def frontier(
        self, subjects: list[CertifiedModel], val: ImageData, test: ImageData, folder: Path, wanted: float, theorem: str
    ) -> None:
        """Every H with the alpha that gives the wanted clean accuracy on val, and the best of them at each radius."""
        seen, whole = {}, {}
        for subject in subjects:
            self.console.print(f"{subject.short}: {len(val):,} validation images", markup=False)
            few = {"samples": VALIDATION_SAMPLES} if subject.kind == "smoothing" else {}
            seen[subject.short] = self.certify(subject, val, folder / subject.short / "val", **few)
        alphas = chosen_alphas(seen, wanted)
        for name in seen.keys() - alphas.keys():
            self.console.print(f"{name} is left out: with no alpha from 1/2 on it reaches {100 * wanted:g} %")
        for subject in [each for each in subjects if each.short in alphas]:
            self.console.print(f"{subject.short}: {len(test):,} test images", markup=False)
            whole[subject.short] = self.certify(subject, test, folder / subject.short)
        found = Frontier({name: with_alpha(each, alphas[name], theorem) for name, each in whole.items()}, wanted)
        write_frontier(folder, found)
        for subject in subjects:
            for part in (folder / subject.short, folder / subject.short / "val"):
                Journal(part / JOURNAL).clear()
        self.console.print(rich_table(certified_frontier_table(found)))
        self.console.print(f"\nIn {folder}: {', '.join(FRONTIER_WRITTEN)}, and a folder for each H", markup=False)


def _check_frontier(subjects: list[CertifiedModel], radius: float | None, norm: str | None) -> None:
    names = [subject.short for subject in subjects]
    if radius is not None or norm == "Linf":
        raise ValueError(
            "expected L2 and all samples with --clean-accuracy, got --norm Linf or --radius: leave them out"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"expected every H once, and under a name of its own, got {', '.join(names)}: rename a file")
    if any(subject.kind == "local" for subject in subjects):
        raise ValueError("expected certificates for --clean-accuracy, got local estimates: choose another method")
