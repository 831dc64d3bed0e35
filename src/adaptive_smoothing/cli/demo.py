"""`adaptive-smoothing demo`: mix and attack the two models of the package on its images."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import (
    RunProgressBar,
    TimeBar,
    choose,
    finish,
    measure_clean_accuracy,
    measure_tradeoff,
    screen,
    show,
)
from adaptive_smoothing.cli.options import VALIDATION, as_share
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.comparison import Comparison, LearnedAlphaResult, Point
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.tradeoff import MIX_ALPHAS, Tradeoff, load_facts, load_tradeoff
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.report.tradeoff.report import Choice, Report
from adaptive_smoothing.report.tradeoff_run import write_run
from adaptive_smoothing.runs.folder import environment, has_result, make_folder
from adaptive_smoothing.runs.progress import RunProgress
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, at_setting

STANDARD, ROBUST, MIXED = "compact-standard", "compact-robust", "compact-mixed"
# The run of `sweep` on the whole test set, and the comparison of a learned with a fixed alpha.
STORED = Path(__file__).parents[1] / "report" / "stored" / "compact"
COMPARED = STORED.with_name(MIXED)
ATTACK = PGD(Linf(8 / 255), steps=20)


@dataclass(frozen=True)
class Workload:
    """What the demo attacks.

    Args:
        images: number of test images.
        batch_size: images per batch.
        alphas: alphas at which the mixture is attacked, other than the chosen one.
        apart: alphas between 0 and 1 that are no further than this from the chosen one are left out.
    """

    images: int
    batch_size: int
    alphas: tuple[float, ...]
    apart: float

    def mix_alphas(self, chosen: float) -> list[float]:
        """Return the alphas at which the mixture is attacked."""
        others = (alpha for alpha in self.alphas if alpha in (0, 1) or abs(alpha - chosen) > self.apart)
        return sorted({chosen, *others})


# About a minute on two CPU cores.
CPU = Workload(24, 8, (0.0, 0.5, 0.7, 1.0), 0.05)
# A few seconds.
GPU = Workload(1000, 500, MIX_ALPHAS, 0.0)


def demo(
    wanted: Annotated[
        float, typer.Option("--clean-accuracy", help="Wanted clean accuracy of the mixture: 0.9, or 90.")
    ] = 0.9,
    images: Annotated[
        int | None, typer.Option(min=1, help="Test images to attack; by default 24 on a CPU, otherwise 1,000.")
    ] = None,
    device: opt.Device = "auto",
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
) -> None:
    """Mix and attack the two models of the package, in under three minutes on a CPU."""
    target, console = as_share(wanted), screen()
    pair = Pair.load(opt.pick_device(device))
    make_folder(out, overwrite=True)
    console.print(_introduction(pair), markup=False)
    stored, learned = _stored_facts(pair, console), stored_comparison(pair.facts)
    start = time.perf_counter()
    choice = choose(_clean_accuracy(pair, stored is not None, out, console), target, console)
    work = CPU if pair.device == "cpu" else GPU
    test = pair.test.take(slice(images or work.images))
    live, interrupted = _attack_pair(pair, test, choice, work, console)
    if learned is not None and not interrupted:
        learned, interrupted = _attack_learned(learned, pair, test, target, work.batch_size, console)
    seconds = round(time.perf_counter() - start, 1)
    facts = {"models": pair.facts, "seconds": seconds, "interrupted": interrupted}
    if learned is not None and learned.measured is not None:
        facts["learned alpha"] = learned.measured.facts
    facts |= environment(pair.device)
    if stored is None:
        report = Report(live, None, choice, facts, learned)
    else:
        # The stored run has far more images, so the report gives its numbers and shows the live run as a check.
        report = Report(load_tradeoff(STORED), live, choice, {**facts, "stored run": stored}, learned)
    show(console, report)
    finish(console, write_run(out, report), interrupted)


@dataclass(frozen=True)
class Pair:
    """The two classifiers of the package, with images that neither was trained on."""

    standard: nn.Module
    robust: nn.Module
    val: ImageData
    test: ImageData
    device: str
    facts: dict[str, Any]

    @classmethod
    def load(cls, device: str) -> Pair:
        standard, robust = (zoo.load(name, device=device) for name in (STANDARD, ROBUST))
        val, test = (datasets.load("builtin", split) for split in ("val", "test"))
        facts = {letter: model_facts(name) for letter, name in (("g", STANDARD), ("h", ROBUST))}
        return cls(standard, robust, val, test, device, facts)


def _introduction(pair: Pair) -> str:
    g, h = (pair.facts[letter]["parameters"] for letter in "gh")
    return (
        f"This package contains two image classifiers for CIFAR-10. g ({STANDARD}, {g / 1e6:.1f} million weights) was "
        f"trained for accuracy only. h ({ROBUST}, {h / 1e6:.1f} million weights) was trained to resist attacks. The "
        "demo mixes their probabilities: (1 − α) g + α h. A larger α gives more weight to h.\n"
    )


def _stored_facts(pair: Pair, console: Console) -> dict[str, Any] | None:
    """Return the facts of the stored run, or None if it is missing or was made with other weights."""
    if not has_result(STORED):
        console.print("This installation has no stored results of these models: only the live run is reported.\n")
        return None
    facts = load_facts(STORED)
    stored = facts.get("models", {})
    if any(stored.get(letter, {}).get("sha256") != model["sha256"] for letter, model in pair.facts.items()):
        console.print("The stored results belong to other weights: only the live run is reported.\n")
        return None
    console.print("Results on the whole test set are stored in the package. The demo repeats them on a few images.\n")
    return facts


def stored_comparison(models: dict[str, Any]) -> LearnedAlphaResult | None:
    """Return the stored comparison of a learned and a fixed alpha, or None if it is missing or of other models."""
    if not pretrained.exists(MIXED) or not has_result(COMPARED):
        return None
    mixture = pretrained.read(pretrained.find(MIXED))
    made_for = {"g": mixture["standard"], "h": mixture["robust"]}
    if any(made_for[letter].get("sha256") != model["sha256"] for letter, model in models.items()):
        return None
    return LearnedAlphaResult(Comparison.read(COMPARED))


def _clean_accuracy(pair: Pair, stored: bool, folder: Path, console: Console) -> CleanAccuracyCurve:
    """Return the clean accuracy at every alpha. The stored one is preferred: it has more validation images."""
    if stored:
        return CleanAccuracyCurve.load(STORED / VALIDATION)
    return measure_clean_accuracy(pair.standard, pair.robust, pair.val, batch_size=50, folder=folder, console=console)


def _attack_pair(
    pair: Pair, test: ImageData, choice: Choice, work: Workload, console: Console
) -> tuple[Tradeoff, bool]:
    """Attack g, h and the mixture. Return the trade-off, and whether Ctrl-C ended the attacks."""
    mix_alphas = work.mix_alphas(choice.alpha)
    attacked = ", ".join(f"{alpha:.3g}" for alpha in mix_alphas)
    console.print(
        f"Attacking {len(test):,} test images with {ATTACK.steps} steps of PGD: on g (STD), on h (ROB), and on the "
        f"mixture (MIX) at α = {attacked}. Use --images N for another number of images.\n"
    )
    return measure_tradeoff(
        pair.standard, pair.robust, test, ATTACK, mix_alphas=mix_alphas, batch_size=work.batch_size, console=console
    )


def _attack_learned(
    learned: LearnedAlphaResult, pair: Pair, data: ImageData, wanted: float, batch_size: int, console: Console
) -> tuple[LearnedAlphaResult, bool]:
    """Attack the mixture with a learned alpha. Return the result, and whether Ctrl-C ended the attack."""
    try:
        with TimeBar(console) as bar:
            bar.report(f"attacking the mixture with a learned α on {len(data):,} images", None)
            return measure_learned(learned, pair, data, wanted, batch_size, RunProgressBar(bar)), False
    except KeyboardInterrupt:
        console.print("[yellow]stopped[/]: the learned α was not attacked")
        return learned, True


def measure_learned(
    learned: LearnedAlphaResult, pair: Pair, data: ImageData, wanted: float, batch_size: int, progress: RunProgress
) -> LearnedAlphaResult:
    """Return `learned` with a measurement of the mixture on these images, clean and under attack.

    If the mixture cannot reach the wanted clean accuracy, it is not measured.
    """
    folder = pretrained.find(MIXED)
    accuracy = CleanAccuracyCurve.load(folder / VALIDATION)
    if not accuracy.reaches(wanted):
        return learned
    mixed = MixedClassifier.from_pretrained(folder, standard=pair.standard, robust=pair.robust, device=pair.device)
    mixed = at_setting(mixed, accuracy.largest_setting(wanted))
    options = EvaluationOptions(batch_size=batch_size)
    found = evaluate(mixed, data, replace(ATTACK, stop_when_fooled=True), progress=progress, options=options)
    facts = {"images": len(data), "clean": found.clean, "robust": found.robust, "shift": mixed.alpha_shift.item()}
    point = Point(MIXED, wanted, found.clean_correct.numpy(), found.robust_correct.numpy(), facts)
    return replace(learned, measured=point)
