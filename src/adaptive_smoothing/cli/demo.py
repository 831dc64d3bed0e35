"""`adaptive-smoothing demo`: attack two mixtures, h and g now, and show stored results next to the new ones."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.cli import INTERRUPTED, demo_models
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import RunProgressBar, TimeBar, print_report, print_run, screen, show_page
from adaptive_smoothing.cli.demo_models import ROBUST, STANDARD, DemoModel, load_models, stored_runs
from adaptive_smoothing.cli.options import as_share
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.demo import (
    FIXED,
    LEARNED,
    ROBUST_ALONE,
    ROLES,
    STANDARD_ALONE,
    DemoResult,
    demo_sentences,
    demo_table,
)
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import read_runs
from adaptive_smoothing.report.run_folder import write_result
from adaptive_smoothing.results import check_writable, percent, read_json, write_json
from adaptive_smoothing.runs.folder import (
    JOURNAL,
    PAGE,
    RESULT,
    environment,
    has_result,
    is_finished,
    make_folder,
    with_schema,
)
from adaptive_smoothing.runs.journal import Journal
from adaptive_smoothing.runs.progress import Progress, RunProgress
from adaptive_smoothing.threat import Linf

THREAT = Linf(8 / 255)
KIND = "demo"  # of the result in the output folder
TITLE = "Mixing an accurate and a robust classifier"
# The stages of `fast` that find nearly all images that it fools, with their steps here, and the most targets of one.
STEPS, TARGETS = {"margin-pgd": 8, "diverse-pgd": 10, "turning-pgd": 10}, 2
# The share of the time that each model takes.
WORK = {LEARNED: 0.37, FIXED: 0.36, ROBUST_ALONE: 0.25, STANDARD_ALONE: 0.02}
NEXT = (
    ("adaptive-smoothing demo --clean-accuracy 0.88 --open", "another operating point, without training"),
    ("adaptive-smoothing evaluate compact-mixed --images 20", "the whole preset fast, with an audit"),
    ("adaptive-smoothing models", "other models and mixtures"),
)


@dataclass(frozen=True)
class Workload:
    """How many images the demo attacks by default, and with which attack."""

    images: int
    cascade: Cascade

    @classmethod
    def of_device(cls, device: str) -> Workload:
        """Return the workload of a GPU, for under a minute; or that of a CPU, for one to two minutes on two cores."""
        fast = preset("fast", THREAT)
        return cls(1000, fast) if torch.device(device).type == "cuda" else cls(128, first_stages(fast))


def first_stages(fast: Cascade) -> Cascade:
    """Return the first attack of `fast` and its first targeted attack, both with fewer steps and targets."""
    stages = []
    for stage in fast.stages:
        if stage.key in STEPS and isinstance(stage.attack, DiversifiedPGD):
            targets = min(stage.attack.target_classes, TARGETS)
            stages.append(replace(stage, attack=replace(stage.attack, target_classes=targets, steps=STEPS[stage.key])))
    return Cascade("first stages of fast", fast.threat, tuple(stages))


def demo(
    wanted: Annotated[
        float, typer.Option("--clean-accuracy", help="Wanted clean accuracy of both mixtures: 0.9, or 90.")
    ] = 0.9,
    images: Annotated[
        int | None, typer.Option(min=1, help="Test images to attack; by default 128 on a CPU, 1,000 on a GPU.")
    ] = None,
    device: opt.Device = "auto",
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    open_page: opt.OpenPage = False,
) -> None:
    """Attack two mixtures of the package, g and h, in a minute or two on a CPU; writes an HTML page."""
    target, where, console, start = as_share(wanted), opt.pick_device(device), screen(), time.perf_counter()
    work = Workload.of_device(where)
    data = _test_images(images or work.images)
    folders = _free_folders(out)
    models = load_models(target, where, console)
    for folder in folders:
        make_folder(folder, overwrite=True)  # removes an earlier result, and keeps the journal of an interrupted demo
    scale = models[FIXED].facts["standard_scale"]
    console.print(_introduction(target, len(data), scale), markup=False)
    verdicts = _attack_all(models, data, work.cascade, out, console)
    result = DemoResult(verdicts, models[FIXED].facts["alpha"], target, stored_runs(target))
    facts = {"seconds": round(time.perf_counter() - start, 1), "interrupted": result.interrupted}
    write_json(out / RESULT, with_schema(KIND, {**result.summary(), "facts": facts | environment(where)}))
    _finish(console, result, out, _write_page(out, result), open_page)


def _test_images(count: int) -> ImageData:
    """Return the first test images of the package."""
    data = datasets.load("builtin", "test")
    if count > len(data):
        hint = "attack fewer, or use adaptive-smoothing evaluate --data cifar10"
        raise ValueError(f"expected --images of at most {len(data):,}, as many as are here, got {count:,}: {hint}")
    return data.take(slice(count))


def _free_folders(out: Path) -> list[Path]:
    """Return the output folders, which need not exist. They may hold an earlier demo; any other run is an error."""
    check_writable(out, "choose another --out")
    folders = [out, *(out / role for role in ROLES)]
    is_demo = (out / RESULT).is_file() and read_json(out / RESULT).get("kind") == KIND
    for folder in folders:
        if not is_demo and is_finished(folder):
            hint = "choose another --out, or remove this folder"
            raise FileExistsError(f"expected a folder without another run, got {folder}, which holds one: {hint}")
    return folders


def _introduction(wanted: float, images: int, scale: float) -> str:
    return (
        f"Four classifiers are attacked on the same test images of CIFAR-10 ({images:,}): g ({STANDARD}), which is "
        f"accurate, h ({ROBUST}), which resists attacks, and two mixtures (1 − α) g + α h with at least "
        f"{percent(wanted)} clean accuracy on validation images. One learned α for each image, with a fine-tuned copy "
        f"of the end of h; the other has one α for all. Both use the logits of g times {scale:g}.\n"
    )


def _attack_all(
    models: Mapping[str, DemoModel], data: ImageData, cascade: Cascade, out: Path, console: Console
) -> dict[str, Verdict]:
    """Attack the models one after the other and write their run folders; Ctrl-C leaves out the others.

    The journals are kept until all models are done: an interrupted demo can be continued.
    """
    verdicts: dict[str, Verdict] = {}
    # The stored runs under `adaptive` say what longer attacks find, so alarms are not worth their time here.
    options = EvaluationOptions(alarms=False)
    try:
        with TimeBar(console) as bar:
            overall = RunProgressBar(bar)
            for role, each in models.items():
                folder, start, progress = out / role, time.perf_counter(), _part_of(overall, role, len(data))
                progress(Progress(len(data), 0, 0, 0, ""))
                found = evaluate(
                    each.model,
                    data,
                    cascade,
                    journal=folder / JOURNAL,
                    overwrite=True,
                    progress=progress,
                    options=options,
                )
                where = next(each.model.parameters()).device
                facts = {"seconds": round(time.perf_counter() - start, 1), **environment(where)}
                summary = {**found.summary(), "models": each.facts}
                if (pictures := Pictures.of(found, data)) is not None:
                    pictures.save(folder)
                write_result(folder, "evaluation", summary, found.rows(), {}, facts)  # figures take seconds
                verdicts[role] = found
    except KeyboardInterrupt:
        if not verdicts:
            raise
        return verdicts
    for role in models:
        Journal(out / role / JOURNAL).clear()
    return verdicts


def _part_of(overall: RunProgress, role: str, images: int) -> RunProgress:
    """Return a function that reports the progress on one model as part of that on all of them."""
    total = len(ROLES) * images
    before = sum(WORK[each] for each in ROLES[: ROLES.index(role)]) * total

    def report(progress: Progress) -> None:
        finished = before + WORK[role] * total * progress.finished / images
        stage = progress.stage and f"{role}: {progress.stage}"
        overall(Progress(total, finished, progress.seen, progress.correct, stage))

    return report


def _write_page(folder: Path, result: DemoResult) -> Path:
    """Write the page of the models that were attacked and of the stored runs, and return its path."""
    live = [replace(run, name=result.titles[role]) for role in result.verdicts for run in read_runs([folder / role])]
    stored = [
        replace(run, name=f"stored: {name}", is_reference=True)
        for place, name in demo_models.STORED_RUNS.items()
        if has_result(place)
        for run in read_runs([place])
    ]
    return write_page(folder / PAGE, [*live, *stored], TITLE, demo_sentences(result), [demo_table(result)])


def _finish(console: Console, result: DemoResult, out: Path, shown: Path, open_page: bool) -> None:
    """Print the result, where the page is and what to try next; open the page; exit with 130 after Ctrl-C."""
    print_report(console, [], [demo_table(result)])
    for sentence in demo_sentences(result):
        console.print(f"- {sentence}", markup=False)
    console.print()
    show_page(console, shown)
    if open_page:
        webbrowser.open(shown.resolve().as_uri())  # without a browser it returns False
    console.print("Try next:")
    for command, purpose in NEXT:
        console.print(f"  {command:54}  {purpose}", markup=False, soft_wrap=True)
    print_run(out)
    if result.interrupted:
        console.print("\n[yellow]stopped[/]: run the same command again to continue")
        raise typer.Exit(INTERRUPTED)
