"""`adaptive-smoothing certify MODEL`: certified radii of a model, image by image."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.certification import certify as certification
from adaptive_smoothing.certification.certificates import Certificates, Frontier, chosen_alphas, with_alpha
from adaptive_smoothing.certification.lipschitz import LipschitzLogits
from adaptive_smoothing.certification.options import METHODS, CertifyOptions, SmoothingOptions, make_options
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import RunProgressBar, TimeBar, print_report, print_run, screen, show_page
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels, check_classes
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.zoo import short_name
from adaptive_smoothing.report import certified as report
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.results import room_for
from adaptive_smoothing.runs.folder import JOURNAL, PAGE, environment, resumable_folder
from adaptive_smoothing.runs.journal import RUN_AGAIN, Journal
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.settings.tables import changed

VOTES = ("hard", "soft")
# Samples of each validation image. They only determine the clean accuracy.
VALIDATION_SAMPLES = 256
# The names of the options of each method.
FIELDS = {method: [field.name for field in fields(options)] for method, options in METHODS.items()}


def certify(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL | G H [H ...]", help="A model, or G and one or more H.")
    ],
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in the mixture, at least 1/2.")] = None,
    clean_accuracy: Annotated[
        float | None, typer.Option(help="Choose alpha for each H on val, and the best H at each radius: 0.8, or 80.")
    ] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; the default follows from H.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of smoothing; default: that of H's training.")] = None,
    votes: Annotated[str, typer.Option(help=f"What smoothing averages: {' or '.join(VOTES)} votes.")] = "hard",
    hardmax: Annotated[bool, typer.Option("--hardmax", help="Replace G by its hardmax.")] = False,
    samples: Annotated[int, typer.Option(help="Largest number of samples per image.")] = SmoothingOptions.samples,
    data: opt.Data = "builtin",
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    images: opt.Images = None,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    device: opt.Devices = "auto",
    changes: Annotated[list[str], opt.set_option(SmoothingOptions, "radius=0.5", "eps", "steps")] = [],  # noqa: B006
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Certify how far each image can be moved with the same prediction; an interrupted run can be continued."""
    preparation = Preparation(method, sigma, votes, hardmax)
    wanted = None if clean_accuracy is None else opt.as_share(clean_accuracy)
    if wanted is not None:
        _check_frontier(models[1:], alpha, split, method)
    elif len(models) > 2:
        raise ValueError("expected --clean-accuracy with several H, got none: it determines the alpha of each H")
    devices = opt.pick_devices(device)
    robust: list[str | None] = [*models[1:]] or [None]
    own = opt.own_models(loader, mean, std, size)
    loaded = [preparation.load(models[0], h, alpha if wanted is None else 1.0, devices[0], own) for h in robust]
    options = _options(sorted({each.method for each in loaded}), samples, preparation, changes)
    for each in loaded:  # raises before anything is sampled
        if wanted is not None:
            _check_frontier_options(options[each.method])
        certification.make_certifier(CertificationTarget.of(each.model), options[each.method])
    chosen = datasets.load(data, split, root=data_root, download=download, images=images)
    check_classes({name: part for each in loaded for name, part in each.parts.items()}, chosen)
    run = Run(screen(), devices, options, overwrite)
    if wanted is None:
        run.certify_one(loaded[0], chosen, out or Path("runs") / f"certify-{loaded[0].short}-{loaded[0].method}")
        return
    val = datasets.load(data, "val", root=data_root, images=images)
    folder = out or Path("runs") / f"certify-{short_name(models[0])}-at-{100 * wanted:g}"
    run.certify_frontier(loaded, val, chosen, folder, wanted)


def _check_frontier(h: list[str], alpha: float | None, split: str, method: str | None) -> None:
    """Raise if an option does not suit --clean-accuracy."""
    names = [short_name(each) for each in h]
    if not names:
        raise ValueError("expected G and one or more H with --clean-accuracy, got one model: name an H")
    if alpha is not None:
        raise ValueError("expected --clean-accuracy without --alpha, got both: --clean-accuracy chooses alpha")
    if split != "test":
        raise ValueError(f"expected --split test with --clean-accuracy, got {split}: alpha is chosen on val")
    if len(set(names)) < len(names):
        raise ValueError(f"expected every H once, each with a different name, got {', '.join(names)}: rename a file")
    if method == "local":
        raise ValueError("expected certificates with --clean-accuracy, got local estimates: choose another method")


def _check_frontier_options(options: CertifyOptions) -> None:
    """Raise if the radii for another alpha could not be computed from this certification."""
    if options.norm == "Linf" or (isinstance(options, SmoothingOptions) and options.radius is not None):
        found = "--set norm=Linf or --set radius"
        raise ValueError(f"expected L2 and all samples with --clean-accuracy, got {found}: leave it out")


@dataclass(frozen=True)
class PreparedModel(LoadedModel):
    """A model that is ready to be certified by `method`."""

    method: str


@dataclass(frozen=True)
class Preparation:
    """Options that change the model or choose the method. Without sigma, h is smoothed with the noise of its training.

    Args:
        hardmax: replace g by its hardmax.
    """

    method: str | None
    sigma: float | None
    votes: str
    hardmax: bool

    def __post_init__(self) -> None:
        if self.method is not None:
            make_options(self.method)  # raises if there is no such method
        check_choice("votes", self.votes, VOTES)

    def load(
        self, model_name: str, h_name: str | None, alpha: float | None, device: str, own: OwnModels
    ) -> PreparedModel:
        """Load a model, or G and H, by name, and smooth h if the method needs it."""
        loaded = LoadedModel.load(model_name, h_name, alpha, device, own)
        model = loaded.model
        if self.hardmax:
            if not isinstance(model, MixedClassifier):
                raise ValueError("expected a mixture for --hardmax, got one model: it replaces G by its hardmax")
            model = model.with_standard(Hardmax(model.standard))
        h = model.robust if isinstance(model, MixedClassifier) else model
        proven = self.sigma is None and isinstance(h, LipschitzLogits)
        method = self.method or ("lipschitz" if proven else "smoothing")
        if method == "smoothing":
            model = self._smoothed(model, h_name or model_name)
        # With alpha 1, the mixture is h alone.
        name = loaded.short if h_name is None or alpha != 1 else short_name(h_name)
        return PreparedModel(model.to(device), loaded.parts, {**loaded.facts, "hardmax": self.hardmax}, name, method)

    def _smoothed(self, model: nn.Module, name: str) -> nn.Module:
        sigma = _trained_sigma(name) if self.sigma is None else self.sigma
        if sigma is None:
            expected = "--sigma, or a model that was trained with noise"
            hint = "smooth it with --sigma 0.25, or estimate with --method local"
            raise ValueError(f"expected {expected}, got {name} without --sigma: {hint}")
        if not isinstance(model, MixedClassifier):
            return SmoothedClassifier(model, sigma, hard=self.votes == "hard")
        CertificationTarget.of(model)  # raises if the mixture cannot be certified
        return model.with_robust(SmoothedClassifier(model.robust, sigma, hard=self.votes == "hard"))


def _trained_sigma(name: str) -> float | None:
    """Return the sigma with which a model was trained, according to its card; None if it was trained without noise."""
    try:
        card = zoo.find_card(name)
    except (ValueError, OSError):  # a mixture has no such card
        return None
    method = {} if card is None else card.card.get("recipe", {}).get("method", {})
    return method.get("sigma") if method.get("name") == "gaussian" else None


def _options(
    methods: list[str], samples: int, preparation: Preparation, changes: list[str]
) -> dict[str, CertifyOptions]:
    """Return the options of each method that is used, or raise an error if an option applies to none of them."""
    given = {
        "samples": samples != SmoothingOptions.samples,
        "sigma": preparation.sigma is not None,
        "votes": preparation.votes != VOTES[0],
    }
    for name, is_given in given.items():
        if is_given and "smoothing" not in methods:
            raise ValueError(f"--{name} applies to --method smoothing only: leave it out")
    keys = [change.partition("=")[0].strip() for change in changes]
    owners = {key: [method for method, names in FIELDS.items() if key in names] for key in keys}
    for key, having in owners.items():
        if having and not set(having) & set(methods):
            raise ValueError(f"--set {key} applies to --method {' and '.join(having)} only: leave it out")
    # A key that no method has is passed on to `changed`, whose error suggests the nearest key.
    return {
        method: changed(
            SmoothingOptions(samples=samples) if method == "smoothing" else make_options(method),
            [change for key, change in zip(keys, changes, strict=True) if method in owners[key] or not owners[key]],
        )
        for method in methods
    }


@dataclass(frozen=True)
class Run:
    """The settings that all certifications of a command have in common; `options` has an entry per method."""

    console: Console
    devices: list[str]
    options: dict[str, CertifyOptions]
    overwrite: bool

    def certify(self, loaded: PreparedModel, data: ImageData, folder: Path, options: CertifyOptions) -> Certificates:
        """Certify a model on some images and write its folder. The journal is kept until the command has finished."""
        folder = resumable_folder(folder, self.overwrite)
        start = time.perf_counter()
        with TimeBar(self.console) as bar:
            found = certification.certify(
                loaded.model,
                data,
                options=options,
                device=self.devices[0],
                devices=self.devices,
                journal=folder / JOURNAL,
                overwrite=self.overwrite,
                progress=RunProgressBar(bar, "certified and correct"),
            )
        facts = {"seconds": round(time.perf_counter() - start, 1), **environment(self.devices[0])}
        with room_for(folder, RUN_AGAIN):
            report.write_certificates(folder, found, loaded.facts, facts, data)
        return found

    def certify_one(self, loaded: PreparedModel, data: ImageData, folder: Path) -> None:
        """Certify one model and print the result."""
        found = self.certify(loaded, data, folder, self.options[loaded.method])
        Journal(folder / JOURNAL).clear()
        tables = [] if loaded.method == "local" else [report.certified_table(found)]
        print_report(self.console, report.certified_sentences(found), tables)
        self.console.print(f"\nWritten to {folder}: {', '.join(report.WRITTEN)}", markup=False)
        self._write_page(folder)
        print_run(folder)

    def _write_page(self, folder: Path) -> None:
        show_page(self.console, write_page(folder / PAGE, read_runs([folder])))

    def certify_frontier(
        self, models: list[PreparedModel], val: ImageData, test: ImageData, folder: Path, wanted: float
    ) -> None:
        """Certify every H with the alpha that gives the wanted clean accuracy on val, and print the frontier."""
        on_val, members = {}, {}
        for each in models:
            self.console.print(f"{each.short}: {len(val):,} validation images", markup=False)
            options = self.options[each.method]
            if isinstance(options, SmoothingOptions):
                options = replace(options, samples=VALIDATION_SAMPLES)
            on_val[each.short] = self.certify(each, val, folder / each.short / "val", options)
        alphas = chosen_alphas(on_val, wanted)
        for name in (name for name in on_val if name not in alphas):
            self.console.print(f"{name} is left out: no alpha from 1/2 on reaches {100 * wanted:g} %")
        for each in [each for each in models if each.short in alphas]:
            self.console.print(f"{each.short}: {len(test):,} test images", markup=False)
            found = self.certify(each, test, folder / each.short, self.options[each.method])
            members[each.short] = with_alpha(found, alphas[each.short], found.settings["theorem"])
        frontier = Frontier(members, wanted)
        report.write_frontier(folder, frontier)
        for each in models:
            for part in (folder / each.short, folder / each.short / "val"):
                Journal(part / JOURNAL).clear()
        self.console.print(rich_table(report.certified_frontier_table(frontier)))
        written = f"{', '.join(report.FRONTIER_WRITTEN)}, a folder for each H"
        self.console.print(f"\nWritten to {folder}: {written}", markup=False)
        self._write_page(folder)
        print_run(folder, report.FRONTIER)
