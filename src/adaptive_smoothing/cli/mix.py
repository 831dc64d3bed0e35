"""`adaptive-smoothing mix G H`: mix two models, with a wanted clean or robust accuracy, and store the mixture."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import print_run, screen, show_page
from adaptive_smoothing.cli.mix_options import MixOptions, Mode, read_request
from adaptive_smoothing.cli.mix_plan import DATA, MixPlan, check_folder, load_images, make_pair, make_plan
from adaptive_smoothing.cli.mix_steps import FEW, MadeMixture, make
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.mixing.pretrained import FILE
from adaptive_smoothing.models.zoo import short_name
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.runs.folder import PAGE, environment
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.tuning.curves import current_setting


def mix(
    standard: opt.Standard,
    robust: opt.Robust,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="One alpha, an alpha per image (trained), or MixedNUTS; default: fixed on a CPU, else adaptive."
        ),
    ] = None,
    clean: opt.CleanAccuracy = None,
    robust_accuracy: Annotated[
        float | None, typer.Option(help="Choose alpha for this accuracy under attack: 0.4, or 40.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="The alpha itself, for --mode fixed.")] = None,
    threat: Annotated[
        str | None, typer.Option(help="Linf:8/255, L2:0.5, ...; by default that of the recipe, or Linf:8/255.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe for --mode adaptive: recipes/mixing*.toml.")] = None,
    changes: Annotated[list[str], opt.set_option(MixOptions, "search=true", "a key of the recipe")] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(help="Data set, as in `sweep`; by default that of the recipe, or builtin.")
    ] = None,
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    resume: opt.Resume = False,
    hold: Annotated[bool, typer.Option("--hold", help="Store copies of G and H with the mixture.")] = False,
    device: opt.Device = "auto",
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Mix two models into one, with a wanted clean or robust accuracy."""
    console, where = screen(), opt.pick_device(device)
    request = read_request(mode, (clean, robust_accuracy), alpha, threat, recipe, changes, resume, where)
    if request.reason:
        console.print(request.reason)
    folder = out or Path("runs") / f"mix-{short_name(standard)}-{short_name(robust)}-{request.mode}"
    training = TrainingOptions(folder, device=where, compiled=request.options.compiled, resume=resume)
    check_folder(training, request.mode, overwrite)
    data = data or (request.recipe.data.name if request.recipe else DATA)
    models = opt.own_models(loader, mean, std, size).load([standard, robust], where)
    pair = make_pair((standard, robust), models, *load_images(data, data_root, download, request.mode))
    plan = make_plan(request, pair, data, training, overwrite)
    with training.stops_with_checkpoint():
        made = make(plan, console)
        _store(made, plan, hold)
    # The command to run next is not wrapped, so that it can be copied.
    console.print(f"\n{_summary(made, plan)}\n{_next_step(plan, loader)}", soft_wrap=True)
    show_page(console, write_page(folder / PAGE, read_runs([folder])))
    print_run(folder, FILE)


def _store(made: MadeMixture, plan: MixPlan, hold: bool) -> None:
    """Store the mixture, its card, and its clean accuracy at every setting."""
    accuracy, attacked, folder = made.accuracy, made.attacked, plan.training.folder
    figures = {"images": len(accuracy.low), "clean": accuracy(current_setting(made.mixed))}
    figures |= {"fast": attacked.mixture, "attacked": attacked.images} if attacked else {}
    card = _card(plan) | environment(plan.training.device) | made.facts
    made.mixed.save_pretrained(folder, hold=hold, card=card | {"figures": {"val": figures}})
    accuracy.save(folder / VALIDATION)


def _card(plan: MixPlan) -> dict[str, Any]:
    """Return the facts for the card that follow from the command line."""
    wanted = {plan.target.name: plan.target.value}
    against = f"{plan.threat.norm}:{plan.threat.eps:g}"
    return {"mode": str(plan.mode), "threat": against, "wanted": wanted, "data": plan.pair.val.fingerprint()}


def _summary(made: MadeMixture, plan: MixPlan) -> str:
    """Return sentences on the clean accuracies of the mixture and of both models, and on accuracies under attack."""
    accuracy, attacked, pair = made.accuracy, made.attacked, plan.pair
    setting = current_setting(made.mixed)
    reached = f"{100 * accuracy(setting):.2f} % on {len(accuracy.low):,} validation images"
    text = f"The mixture has a clean accuracy of {reached}, at {accuracy.parameter} {setting:.4g}. "
    text += f"{pair.standard} alone has {100 * made.fixed(0):.2f} %, {pair.robust} alone {100 * made.fixed(1):.2f} %.\n"
    if attacked is None:
        return f"{text}The mixture was not attacked: --set attacked={FEW} attacks {FEW} validation images."
    shares = f"{100 * attacked.mixture:.2f} %, {pair.robust} alone {100 * attacked.robust:.2f} %"
    return f"{text}Robust accuracy under the preset fast, on {attacked.images:,} images: the mixture {shares}."


def _next_step(plan: MixPlan, loader: str | None) -> str:
    """Return where the mixture is, and the command to run next."""
    folder = plan.training.folder
    given = {"--data": plan.data if plan.data != DATA else None, "--loader": loader}
    options = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    attack = f"adaptive-smoothing evaluate {shlex.quote(str(folder))} --attack adaptive{options}"
    return f"Written to {folder}. Next, attack it: {attack}"
