"""`adaptive-smoothing evaluate MODEL`: clean and robust accuracy of a model, image by image."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade, stage_title
from adaptive_smoothing.attacks.presets import PRESETS, as_preset, find_preset, user_function
from adaptive_smoothing.attacks.step_attack import StepAttack
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import (
    RunProgressBar,
    TimeBar,
    print_report,
    print_run,
    screen,
    show_alarms,
    show_page,
)
from adaptive_smoothing.cli.operating_points import first_alpha, operating_points, without_alpha
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.binarization import binarization_test
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.cost import Cost, measure_cost
from adaptive_smoothing.evaluation.radii import RadiusCurve, check_radii, evaluate_radii, journal_of
from adaptive_smoothing.evaluation.stored import different_settings, load_curve
from adaptive_smoothing.mixing.loading import LoadedModel, check_classes
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.report.radii import radii_table, write_radii
from adaptive_smoothing.report.verdicts import sentences, verdict_tables, write_verdict
from adaptive_smoothing.results import percent, read_json, room_for
from adaptive_smoothing.runs.folder import (
    FACTS,
    JOURNAL,
    PAGE,
    RESULT,
    environment,
    is_finished,
    resumable_folder,
)
from adaptive_smoothing.runs.journal import RUN_AGAIN, Journal
from adaptive_smoothing.settings.tables import changed
from adaptive_smoothing.settings.user_code import check_parameters, errors_in_user_code, import_function
from adaptive_smoothing.threat import Threat, parse_number, parse_threat

BINARIZATION = "binarization"
# Panel of the help.
POINTS = "Operating points of a mixture"
# Images of the binarization test, by type of device; each takes some hundred passes.
BINARIZED = {"cuda": 64, "cpu": 8}


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL | G", help="A name from `models`, or a path; G of a mixture G H.")
    ],
    robust: Annotated[str | None, typer.Argument(metavar="H", help="The robust model of a mixture G H.")] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Weight of H in a mixture G H; several: 0.8,0.9.", rich_help_panel=POINTS)
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--clean-accuracy",
            help="Move a mixture to this clean accuracy on val; several: 0.88,0.9.",
            rich_help_panel=POINTS,
        ),
    ] = None,
    attack: Annotated[
        str, typer.Option("--attack", "--preset", help=f"{', '.join(PRESETS)}, or your own module:function.")
    ] = "fast",
    threat: opt.ThreatText = "Linf:8/255",
    eps: Annotated[str | None, typer.Option(help="Radii in place of that of --threat: 2/255,8/255.")] = None,
    data: opt.Data = "builtin",
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    images: opt.Images = None,
    save_adversarial: Annotated[
        str | None, typer.Option(metavar="N|all", help="Write the attacked versions of the first N images, or of all.")
    ] = None,
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
    threats = parse_threats(threat, eps)
    cascades = make_cascades(attack, threats, seed)
    options = changed(EvaluationOptions(save_adversarial=parse_count(save_adversarial)), changes)
    for unknown in set(check) - {BINARIZATION}:
        raise ValueError(f"expected --check {BINARIZATION}, got {unknown!r}: there is no other check")
    devices = opt.pick_devices(device)
    alphas, targets = parse_alphas(alpha), parse_targets(wanted)
    first = first_alpha(alphas, targets, is_pair=robust is not None)
    loaded = LoadedModel.load(model, robust, first, devices[0], opt.own_models(loader, mean, std, size))
    chosen = datasets.load(data, split, root=data_root, download=download, images=images)
    check_classes(loaded.parts, chosen)
    points = operating_points(loaded, alphas, targets, lambda: datasets.load(data, "val", root=data_root))
    runs = [Run(point, chosen, cascades, devices, options, check=BINARIZATION in check) for point in points]
    several, name = len(runs) > 1, without_alpha(loaded) if len(runs) > 1 else points[0].short
    folder = out or Path("runs") / f"evaluate-{name}-{attack.replace(':', '.')}"
    folders = [folder / point.short if several else folder for point in points]
    for run, place in zip(runs, folders, strict=True):
        if overwrite or not is_finished(place):
            with _user_errors(attack, "attacked images"):
                run.measure(resumable_folder(place, overwrite), overwrite)
        else:
            run.show_stored(place)
    if several:
        screen().print("All operating points on one page:")
        show_page(screen(), write_page(folder / PAGE, read_runs([folder]), name))
        print_result({"runs": [read_json(place / RESULT) for place in folders]}, folder)
    else:
        print_run(folder)


def parse_alphas(text: str | None) -> list[float]:
    """Return the alphas of the option --alpha."""
    alphas = parse_list(text, "--alpha", "0.8,0.85,0.9")
    if not all(0 <= alpha <= 1 for alpha in alphas):
        raise ValueError(f"expected --alpha in [0, 1] (0 is G, 1 is H), got {text!r}: for example --alpha 0.85")
    return alphas


def parse_targets(text: str | None) -> list[float]:
    """Return the clean accuracies of the option --clean-accuracy, as shares."""
    return [opt.as_share(each) for each in parse_list(text, "--clean-accuracy", "0.88,0.9")]


def parse_list(text: str | None, option: str, example: str) -> list[float]:
    """Return the different numbers of an option in ascending order; none without it."""
    if text is None:
        return []
    try:
        return sorted({parse_number(part) for part in text.split(",")})
    except ValueError as error:
        raise ValueError(f"expected {option} such as {example}, got {text!r}: separate numbers by commas") from error


def make_cascades(attack: str, threats: list[Threat], seed: int) -> list[Cascade]:
    """Return the attack at each radius: of a preset, or of the attack or preset that `module:function` names."""
    make = as_preset(attack, import_function(attack, "--attack")) if ":" in attack else find_preset(attack)
    with _user_errors(attack, "an attack"):
        cascades = [make(threat, seed=seed) for threat in threats]
    for stage in cascades[0].stages:
        if not isinstance(stage.attack, StepAttack):
            check_parameters(stage.attack, ["model", "images", "labels"], attack, "--attack")
    return cascades


def _user_errors(attack: str, expected: str) -> AbstractContextManager[None]:
    """Return `errors_in_user_code` for an attack that is not of this package."""
    function = user_function(attack)
    return nullcontext() if function is None else errors_in_user_code(function, expected)


def parse_threats(threat: str, eps: str | None) -> list[Threat]:
    """Return the threat, or one threat for each of several radii in ascending order."""
    if eps is None:
        return [parse_threat(threat)]
    norm = parse_threat(f"{threat.partition(':')[0]}:0")
    try:
        radii = [parse_number(part) for part in eps.split(",")]
    except ValueError as error:
        raise ValueError(f"expected --eps such as 2/255,4/255,8/255, got {eps!r}: separate radii by commas") from error
    return [norm.with_eps(radius) for radius in check_radii(radii)]


def parse_count(text: str | None) -> int:
    """Return how many attacked images to keep: N, all of them, or none by default."""
    if text in (None, "all"):
        return 0 if text is None else sys.maxsize
    if not str(text).isdigit():
        raise ValueError(f"expected --save-adversarial N or all, got {text!r}: for example --save-adversarial 100")
    return int(str(text))


@dataclass(frozen=True)
class Run:
    """A model, its data, the attack at each radius, and options.

    Args:
        check: run the binarization test as well.
    """

    loaded: LoadedModel
    data: ImageData
    cascades: list[Cascade]
    devices: list[str]
    options: EvaluationOptions
    check: bool

    def measure(self, folder: Path, overwrite: bool) -> None:
        """Evaluate the model, write the run folder, and print the result."""
        console, start, loaded, journal = screen(), time.perf_counter(), self.loaded, folder / JOURNAL
        at_radius = dict(zip(self.radii, self.cascades, strict=True))
        with TimeBar(console) as bar:
            bar.report(f"checking the model before it is attacked on {len(self.data):,} images", None)
            curve = evaluate_radii(
                loaded.model,
                self.data,
                lambda threat: at_radius[float(threat.eps)],
                type(self.cascades[0].threat),
                self.radii,
                device=self.devices[0],
                devices=self.devices,
                journal=journal,
                overwrite=overwrite,
                progress=RunProgressBar(bar),
                options=self.options,
            )
        costs = _costs(loaded, self.data, self.devices[0])
        facts = {"seconds": round(time.perf_counter() - start, 1), **environment(self.devices[0])}
        facts |= {"cost": {part: cost.summary() for part, cost in costs.items()}}
        if self.check:
            cascade = self.cascades[-1].for_model(loaded.model)
            facts[BINARIZATION] = _binarization(loaded.model, self.data, cascade, self.devices[0])
        with room_for(folder, RUN_AGAIN):
            if len(curve.radii) == 1:
                written = write_verdict(folder, curve.verdicts[0], loaded.facts, facts, self.data)
            else:
                written = write_radii(folder, curve, loaded.facts, facts, self.data)
            write_page(folder / PAGE, read_runs([folder]))
        for number in reversed(range(len(self.cascades))):
            Journal(journal_of(journal, number)).clear()
        self._show(console, curve, facts)
        console.print(f"Written to {folder}: {', '.join(written)}", markup=False, soft_wrap=True)
        show_page(console, folder / PAGE)

    def show_stored(self, folder: Path) -> None:
        """Print the result of the same command, or raise an error if the folder holds that of another one."""
        stored, facts = load_curve(folder), read_json(folder / FACTS) if (folder / FACTS).is_file() else {}
        if other := [*self._differences(stored), *[BINARIZATION] * (self.check and BINARIZATION not in facts)]:
            found = f"{folder}, which holds one with another {', '.join(other)}"
            hint = "choose another --out, or replace it with --overwrite"
            raise FileExistsError(f"expected a folder without a run, or with this one, got {found}: {hint}")
        console, code = screen(), stored.verdicts[0].settings["code"]
        self._show(console, stored, facts)
        found = f"This run was finished before, with version {code}: {folder}. --overwrite repeats it."
        console.print(found, markup=False, soft_wrap=True)

    @property
    def radii(self) -> list[float]:
        return [float(cascade.threat.eps) for cascade in self.cascades]

    def _differences(self, stored: RadiusCurve) -> Iterable[str]:
        """Yield what is different in a stored run."""
        run = EvaluationRun(
            model=self.loaded.model,
            data=self.data,
            cascade=self.cascades[0].for_model(self.loaded.model),
            device=torch.device(self.devices[0]),
            journal=Journal(),
            options=self.options,
        )
        first = stored.verdicts[0]
        yield from different_settings(first.settings, run.result_settings)
        if list(stored.radii[1:]) != self.radii[1:]:
            yield "eps"
        if (first.alarms is not None) != self.options.alarms:
            yield "setting of alarms"

    def _show(self, console: Console, curve: RadiusCurve, facts: dict[str, Any]) -> None:
        """Print the result at the largest radius, the curve, the alarms, and the stages that were left out."""
        verdict, cascade = curve.verdicts[-1], self.cascades[-1]
        costs = {name: Cost(**cost) for name, cost in facts.get("cost", {}).items()}
        curves = [radii_table(curve)] if len(curve.radii) > 1 else []
        print_report(console, sentences(verdict), [*curves, *verdict_tables(verdict, costs)])
        console.print()
        if BINARIZATION in facts:
            console.print(_binarization_sentence(facts[BINARIZATION]), markup=False)
        show_alarms(console, verdict.alarms)
        applicable = cascade.for_model(self.loaded.model).stage_keys
        if titles := [stage_title(key) for key in cascade.stage_keys if key not in applicable]:
            console.print(f"Attacks that do not apply to this model: {'; '.join(titles)}.", markup=False)


def _costs(loaded: LoadedModel, data: ImageData, device: str) -> dict[str, Cost]:
    """Return the cost of the model and, for a mixture, of the two models in it."""
    models = loaded.parts if len(loaded.parts) == 1 else {"mixture": loaded.model, **loaded.parts}
    shape = tuple(data.images.shape[1:])
    return {name: measure_cost(model, shape, device) for name, model in models.items()}


def _binarization(model: nn.Module, data: ImageData, cascade: Cascade, device: str) -> dict[str, Any]:
    """Run the binarization test with the attacks of this run, and return its outcome.

    Attacks on a view of the model, such as transfers, are skipped; if there are no others, PGD-50 is used.
    """
    part = data.take(slice(BINARIZED.get(torch.device(device).type, 64))).to(device)
    has_own = any(stage.source is None for stage in cascade.stages)
    found = binarization_test(model, part.floats(), part.labels, cascade.threat, cascade if has_own else None)
    return {"attack": cascade.name if has_own else "PGD-50", **asdict(found), "passed": found.passed}


def _binarization_sentence(found: dict[str, Any]) -> str:
    """Return the outcome of the binarization test in words."""
    outcome = "no image could be tested."
    if found["attack_success"] is not None and found["random_success"] is not None:
        outcome = (
            f"on {found['images']} images {found['attack']} found the planted example in "
            f"{percent(found['attack_success'], 0)}, random points in {percent(found['random_success'], 0)}."
        )
    return f"Binarization test {'passed' if found['passed'] else 'FAILED'}: {outcome}"
