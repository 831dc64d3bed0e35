"""`adaptive-smoothing certify MODEL`: certified radii of a model, image by image."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adaptive_smoothing.certification import certify as certification
from adaptive_smoothing.certification.certificates import Certificates, Frontier, chosen_alphas, with_alpha
from adaptive_smoothing.certification.certifiers import make_certifier
from adaptive_smoothing.certification.options import METHODS, CertifyOptions, SmoothingOptions, check_method
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.cli.certify_model import CertifiedModel, CertifyPreparation
from adaptive_smoothing.cli.console import RunProgressBar, TimeBar, screen
from adaptive_smoothing.cli.options import as_share, pick_device
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.loading import check_classes
from adaptive_smoothing.models.zoo import short_name
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
from adaptive_smoothing.runs.folder import JOURNAL, environment, resumable_folder
from adaptive_smoothing.runs.journal import Journal, room_for
from adaptive_smoothing.settings import changed
from adaptive_smoothing.threat import NORMS

VOTES = ("hard", "soft")
# Samples of each validation image, which are used for its clean accuracy only.
VALIDATION_SAMPLES = 256
FIELDS = {method: [field.name for field in fields(options)] for method, options in METHODS.items()}
# Fields that have an option of their own; the others are keys of --set.
SHOWN = ("samples", "failure_probability", "radius")
KEYS = dict.fromkeys(name for names in FIELDS.values() for name in names if name not in SHOWN)


def certify(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL | G H [H ...]", help="A model, or G and one or more H.")
    ],
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in the mixture, at least 1/2.")] = None,
    clean_accuracy: Annotated[
        float | None,
        typer.Option(help="Choose alpha for each H on val, and the best H at each radius: 0.8, or 80."),
    ] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; default: what H is made for.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of smoothing; default: what H was trained with.")] = None,
    votes: Annotated[str, typer.Option(help=f"What smoothing averages: {' or '.join(VOTES)} votes.")] = "hard",
    hardmax: Annotated[bool, typer.Option("--hardmax", help="Replace G by its hardmax.")] = False,
    radius: Annotated[
        float | None, typer.Option(help="Stop sampling an image as soon as this radius is decided.")
    ] = SmoothingOptions.radius,
    samples: Annotated[int, typer.Option(help="Samples per image, at most.")] = SmoothingOptions.samples,
    failure_probability: Annotated[
        float, typer.Option(help="Probability that the certificate of an image is wrong, at most.")
    ] = SmoothingOptions.failure_probability,
    norm: Annotated[str | None, typer.Option(help="L2 or Linf; default: L2, of a local estimate Linf.")] = None,
    data: Annotated[str, typer.Option(help="Data set: builtin, cifar10, cifar100, or a path.")] = "builtin",
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download the data set if it is missing.")] = False,
    split: Annotated[str, typer.Option(help="test, val, or all for data without splits.")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="Use the first N images only.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/certify-MODEL-METHOD.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the run folder.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or several: cuda:0,cuda:1.")] = "auto",
    changes: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help=f"Change an option: {', '.join(KEYS)}.")
    ] = [],  # noqa: B006
) -> None:
    """Certify how far each image can be moved with the same prediction; an interrupted run can be continued."""
    if method is not None:
        check_method(method)
    if votes not in VOTES:
        raise ValueError(f"expected votes to be one of {', '.join(VOTES)}, got {votes!r}")
    norm = _norm(norm)
    wanted = _wanted(models, alpha, clean_accuracy, split)
    smoothing = SmoothingOptions(samples=samples, failure_probability=failure_probability, radius=radius)
    devices = [pick_device(part) for part in device.split(",")]
    preparation = CertifyPreparation(method, sigma, votes, hardmax)
    loaded = [
        CertifiedModel.prepare(pair, 1.0 if wanted else alpha, devices[0], preparation) for pair in _pairs(models)
    ]
    if wanted is not None:
        _check_frontier(loaded, radius, norm)
    options = _options(sorted({each.kind for each in loaded}), smoothing, preparation, changes)
    for each in loaded:  # raises before anything is sampled
        make_certifier(CertificationTarget.of(each.model), options[each.kind], norm)
    everything = datasets.load(data, split, root=data_root, download=download)
    for each in loaded:
        check_classes(each.parts, everything)
    chosen = everything.take(slice(images))
    run = Run(screen(), devices, options, norm, overwrite)
    if wanted is None:
        run.certify_one(loaded[0], chosen, out or Path("runs") / f"certify-{loaded[0].short}-{loaded[0].kind}")
        return
    val = datasets.load(data, "val", root=data_root).take(slice(images))
    folder = out or Path("runs") / f"certify-{short_name(models[0])}-at-{100 * wanted:g}"
    run.certify_frontier(loaded, val, chosen, folder, wanted)


def _norm(text: str | None) -> str | None:
    """Return the name of a norm in its usual spelling."""
    known = {name.lower(): name for name in NORMS}
    if text is not None and text.lower() not in known:
        raise ValueError(f"expected a norm among {', '.join(NORMS)}, got {text!r}: for example --norm L2")
    return None if text is None else known[text.lower()]


def _options(
    methods: list[str], smoothing: SmoothingOptions, preparation: CertifyPreparation, changes: list[str]
) -> dict[str, CertifyOptions]:
    """Return the options of each method that is used. Raises if an option applies to none of them."""
    given = {
        "--sigma": preparation.sigma is not None,
        "--votes": preparation.votes != VOTES[0],
        "--radius": smoothing.radius is not None,
        "--samples": smoothing.samples != SmoothingOptions.samples,
        "--failure-probability": smoothing.failure_probability != SmoothingOptions.failure_probability,
    }
    for name, is_given in given.items():
        if is_given and "smoothing" not in methods:
            raise ValueError(f"{name} applies to --method smoothing only: leave it out")
    keys = [change.partition("=")[0].strip() for change in changes]
    having = {key: [method for method, names in FIELDS.items() if key in names] for key in keys}
    for key, owners in having.items():
        if owners and not set(owners) & set(methods):
            raise ValueError(f"--set {key} applies to --method {' and '.join(owners)} only: leave it out")
    # A key that no method has reaches `changed`, whose error suggests the nearest.
    return {
        method: changed(
            smoothing if method == "smoothing" else METHODS[method](),
            [change for key, change in zip(keys, changes, strict=True) if method in having[key] or not having[key]],
        )
        for method in methods
    }


def _pairs(models: list[str]) -> list[tuple[str, ...]]:
    return [(models[0],)] if len(models) == 1 else [(models[0], h) for h in models[1:]]


def _wanted(models: list[str], alpha: float | None, clean_accuracy: float | None, split: str) -> float | None:
    """Return the clean accuracy for which alpha is chosen; None if alpha is given."""
    if clean_accuracy is None:
        if len(models) > 2:
            raise ValueError("expected --clean-accuracy with several H, got none: it determines the alpha of each H")
        return None
    if len(models) < 2 or alpha is not None:
        raise ValueError("expected G and one or more H without --alpha: --clean-accuracy chooses alpha")
    if split != "test":
        raise ValueError(f"expected --split test with --clean-accuracy, got {split}: alpha is chosen on val")
    return as_share(clean_accuracy)


@dataclass(frozen=True)
class Run:
    """A command: what all its certifications have in common. `options` are by method."""

    console: Console
    devices: list[str]
    options: dict[str, CertifyOptions]
    norm: str | None
    overwrite: bool

    def certify(self, loaded: CertifiedModel, data: ImageData, folder: Path, options: CertifyOptions) -> Certificates:
        """Certify a model on some images and write its folder. The journal is kept until the command has finished."""
        folder = resumable_folder(folder, self.overwrite)
        start = time.perf_counter()
        with TimeBar(self.console) as bar:
            found = certification.certify(
                loaded.model,
                data,
                norm=self.norm,
                options=options,
                device=self.devices[0],
                devices=self.devices if len(self.devices) > 1 else (),
                journal=folder / JOURNAL,
                overwrite=self.overwrite,
                progress=RunProgressBar(bar, "certified and correct"),
            )
        facts = {"seconds": round(time.perf_counter() - start, 1), **environment(self.devices[0])}
        with room_for(folder):
            write_certificates(folder, found, loaded.facts, facts)
        return found

    def certify_one(self, loaded: CertifiedModel, data: ImageData, folder: Path) -> None:
        """Certify one model and print the result."""
        found = self.certify(loaded, data, folder, self.options[loaded.kind])
        Journal(folder / JOURNAL).clear()
        for text in certified_sentences(found):
            self.console.print(f"\n{text}", markup=False)
        if loaded.kind != "local":
            self.console.print()
            self.console.print(rich_table(certified_table(found)))
        self.console.print(f"\nIn {folder}: {', '.join(WRITTEN)}", markup=False)

    def certify_frontier(
        self, models: list[CertifiedModel], val: ImageData, test: ImageData, folder: Path, wanted: float
    ) -> None:
        """Certify every H with the alpha that gives the wanted clean accuracy on val, and print the frontier."""
        on_val, on_test = {}, {}
        for each in models:
            self.console.print(f"{each.short}: {len(val):,} validation images", markup=False)
            options = self.options[each.kind]
            if isinstance(options, SmoothingOptions):
                options = replace(options, samples=VALIDATION_SAMPLES)
            on_val[each.short] = self.certify(each, val, folder / each.short / "val", options)
        alphas = chosen_alphas(on_val, wanted)
        for name in on_val.keys() - alphas.keys():
            self.console.print(f"{name} is left out: no alpha from 1/2 on reaches {100 * wanted:g} %")
        for each in [each for each in models if each.short in alphas]:
            self.console.print(f"{each.short}: {len(test):,} test images", markup=False)
            on_test[each.short] = self.certify(each, test, folder / each.short, self.options[each.kind])
        members = {name: with_alpha(each, alphas[name], each.settings["theorem"]) for name, each in on_test.items()}
        frontier = Frontier(members, wanted)
        write_frontier(folder, frontier)
        for each in models:
            for part in (folder / each.short, folder / each.short / "val"):
                Journal(part / JOURNAL).clear()
        self.console.print(rich_table(certified_frontier_table(frontier)))
        self.console.print(f"\nIn {folder}: {', '.join(FRONTIER_WRITTEN)}, and a folder for each H", markup=False)


def _check_frontier(models: list[CertifiedModel], radius: float | None, norm: str | None) -> None:
    names = [each.short for each in models]
    if radius is not None or norm == "Linf":
        raise ValueError(
            "expected L2 and all samples with --clean-accuracy, got --norm Linf or --radius: leave them out"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"expected every H once, each with a different name, got {', '.join(names)}: rename a file")
    if any(each.kind == "local" for each in models):
        raise ValueError("expected certificates for --clean-accuracy, got local estimates: choose another method")
