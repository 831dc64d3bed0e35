"""`adaptive-smoothing demo`: the whole story on the models and images inside the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli.console import TimeBar, finish, screen, show
from adaptive_smoothing.cli.demo_learned import measured_now, stored_comparison
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.target import VALIDATION, as_share, choose
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.budget import Deadline, Plan, Speed, measure_speed, plan, timed_tradeoff
from adaptive_smoothing.evaluation.comparison import Learned
from adaptive_smoothing.evaluation.tradeoff import MIX_ALPHAS, Tradeoff
from adaptive_smoothing.evaluation.tradeoff_files import has_tradeoff, load_facts, load_tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts
from adaptive_smoothing.report import run_folder as run_folder
from adaptive_smoothing.report.sentences import Choice, Report
from adaptive_smoothing.runs.environment import environment
from adaptive_smoothing.runs.folder import make_folder
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import accuracy_curve

STANDARD, ROBUST = "compact-standard", "compact-robust"
STORED = Path(run_folder.__file__).parent / "stored" / "compact"
ATTACK = PGD(Linf(8 / 255), steps=20)
# On a CPU every attacked alpha costs images: where the curve starts to rise, and one point on its way.
FEW_ALPHAS = (0.0, 0.5, 0.7, 1.0)
# Validation images only have to be predicted: this share of the time is enough for most of them.
TUNING_SHARE = 0.15
# The mixture with a learned alpha is attacked at one setting, which takes a seventh of the rest.
LEARNED_SHARE, MIXER_COST = 0.12, 1.2


def demo(
    wanted: Annotated[
        float, typer.Option("--clean-accuracy", help="Wanted clean accuracy of the mixture: 0.9, or 90")
    ] = 0.9,
    images: Annotated[
        int | None, typer.Option(min=1, help="At most so many test images; default: what the time allows")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time for all that is measured")] = 80,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    out: Annotated[Path, typer.Option(help="Run folder")] = Path("runs/demo"),
) -> None:
    """Tell the whole story on the models and images inside the package, in under three minutes."""
    target, console = as_share(wanted), screen()
    pair = Pair.load(pick_device(device))
    make_folder(out, overwrite=True)
    console.print(_opening(pair), markup=False)
    stored, learned = _stored_facts(pair, console), stored_comparison(pair.facts)
    reserved = LEARNED_SHARE * seconds if learned else 0.0
    deadline = Deadline(seconds - reserved)
    with TimeBar(console) as bar:
        bar.say("measuring the speed", seconds)
        speed = measure_speed(pair.standard, pair.robust, pair.test, ATTACK, images=pair.probe)
        # The stored run knows more validation images than the package has room for.
        accuracy = (
            CleanAccuracyCurve.load(STORED / VALIDATION) if stored else _clean_accuracy(pair, speed, deadline, bar)
        )
        choice = choose(accuracy, target, console)
        live, interrupted = _measure(pair, choice, speed, deadline, bar, images)
        bar.say(f"attacked {live.images} test images", reserved)
        if learned is not None and not interrupted:
            few = plan(reserved, MIXER_COST * ATTACK.steps * speed.step, live.images).images
            learned, interrupted = _attack_learned(learned, pair, pair.test.take(few), target)
    if interrupted:
        console.print("[yellow]stopped[/]: what follows is about the images done until then")
    console.print(f"{live.images:,} images in {deadline.gone():.0f} s.")
    facts = {"models": pair.facts, "seconds": round(deadline.gone(), 1), "interrupted": interrupted}
    if learned is not None and learned.now is not None:
        facts["learned alpha"] = learned.now.facts
    report = Report(live, None, choice, {**facts, **environment(pair.device)}, learned)
    if stored:
        # The stored run of these very models carries the numbers, the live one shows that they can be had again.
        report = replace(report, main=load_tradeoff(STORED), live=live, facts={**report.facts, "stored run": stored})
    show(console, report)
    finish(console, run_folder.write_run(out, report), interrupted)


def attacked_alphas(chosen: float, device: str) -> list[float]:
    """The alphas of the MIX attack: the chosen one, and others; on a CPU none that is close to it."""
    others, apart = (FEW_ALPHAS, 0.05) if device == "cpu" else (MIX_ALPHAS, 0.0)
    return sorted({chosen, *(alpha for alpha in others if alpha in (0, 1) or abs(alpha - chosen) > apart)})


@dataclass(frozen=True)
class Pair:
    """The two classifiers of the package, with images neither was trained on."""

    standard: nn.Module
    robust: nn.Module
    val: ImageData
    test: ImageData
    device: str
    facts: dict[str, Any]

    @property
    def probe(self) -> int:
        """How many images show the speed: an accelerator takes as long for eight as for some hundreds."""
        return 8 if self.device == "cpu" else 500

    @classmethod
    def load(cls, device: str) -> Pair:
        standard, robust = (zoo.load(name, device=device) for name in (STANDARD, ROBUST))
        val, test = (datasets.load("builtin", split) for split in ("val", "test"))
        facts = {letter: model_facts(name) for letter, name in (("g", STANDARD), ("h", ROBUST))}
        return cls(standard, robust, val, test, device, facts)


def _opening(pair: Pair) -> str:
    g, h = (sum(weight.numel() for weight in model.parameters()) for model in (pair.standard, pair.robust))
    return (
        f"Two classifiers for CIFAR-10 come with this package: g ({STANDARD}, {g / 1e6:.1f} million "
        f"weights), trained for accuracy alone, and h ({ROBUST}, {h / 1e6:.1f} million), trained against "
        "attacks. Their mixture is (1 − α) g + α h, and α is a dial.\n"
    )


def _stored_facts(pair: Pair, console: Console) -> dict[str, Any] | None:
    """How the stored run came about, if it is of these very models."""
    if not has_tradeoff(STORED):
        console.print("This installation holds no stored run of these models: the live run stands alone.\n")
        return None
    facts = load_facts(STORED)
    theirs = facts.get("models", {})
    if any(theirs.get(letter, {}).get("sha256") != model["sha256"] for letter, model in pair.facts.items()):
        console.print("The stored run is of other weights than these and is left out: the live run stands alone.\n")
        return None
    console.print("A stored run of these models on the whole test set is drawn beside what is measured now.\n")
    return facts


def _clean_accuracy(pair: Pair, speed: Speed, deadline: Deadline, bar: TimeBar) -> CleanAccuracyCurve:
    """The dial is set on validation images: the test images are for reporting."""
    data = pair.val.take(plan(TUNING_SHARE * deadline.seconds, speed.predict, len(pair.val)).images)

    def watch(done: int) -> None:
        bar.say(f"predicting {len(data):,} validation images", deadline.left())

    watch(0)
    return accuracy_curve(MixedClassifier(pair.standard, pair.robust, 0.5), data, batch_size=50, progress=watch)


def _measure(
    pair: Pair, choice: Choice, speed: Speed, deadline: Deadline, bar: TimeBar, images: int | None
) -> tuple[Tradeoff, bool]:
    """STD, ROB and MIX attacks on as many test images as the time allows; True when Ctrl-C ended it."""
    mix_alphas = attacked_alphas(choice.alpha, pair.device)
    per_image = speed.per_image(ATTACK.steps, mix_alphas)
    data = pair.test.take(min(images or len(pair.test), len(pair.test)))
    planned = plan(deadline.left(), per_image, len(data))
    bar.console.print(_announcement(planned, len(data), per_image, deadline, mix_alphas))
    expected = planned.images * per_image

    def watch(done: int, rest: float | None) -> None:
        bar.say(f"attacked {done} test images", expected if rest is None else rest)

    watch(0, None)
    return timed_tradeoff(
        pair.standard,
        pair.robust,
        data,
        ATTACK,
        deadline=deadline,
        batch_size=planned.batch_size if pair.device == "cpu" else pair.probe,
        mix_alphas=mix_alphas,
        watch=watch,
    )


def _attack_learned(learned: Learned, pair: Pair, data: ImageData, wanted: float) -> tuple[Learned, bool]:
    """What the attack leaves of the mixture with a learned alpha; True when Ctrl-C ended it."""
    try:
        return measured_now(learned, pair.standard, pair.robust, data, ATTACK, wanted), False
    except KeyboardInterrupt:
        return learned, True


def _announcement(planned: Plan, available: int, per_image: float, deadline: Deadline, mix_alphas: list[float]) -> str:
    attacked = ", ".join(f"{alpha:.3g}" for alpha in mix_alphas)
    cost = (
        f"{ATTACK.steps} steps of PGD on g (STD), on h (ROB) and on the mixture (MIX) at α = {attacked} take "
        f"about {per_image:.2g} s an image on this machine: "
    )
    if planned.images == available:
        return f"{cost}all {available:,} images fit into the time.\n"
    return (
        f"{cost}about {planned.images} of the {available:,} test images fit into the {deadline.left():.0f} s "
        f"that are left; --seconds gives more.\n"
    )
