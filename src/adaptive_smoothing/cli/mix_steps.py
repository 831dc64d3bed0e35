"""The steps of `mix`: measure both models, train or search, choose the operating point, attack. Progress is shown."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from adaptive_smoothing.cli.console import Count, TimeBar
from adaptive_smoothing.cli.mix_options import Mode
from adaptive_smoothing.cli.mix_plan import DATA, MixPlan, Pair
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.runs.progress_bar import clock
from adaptive_smoothing.settings.checks import warn_user
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, training_facts
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve, at_setting
from adaptive_smoothing.tuning.nonlinear import ATTACKED, fit_nonlinear
from adaptive_smoothing.tuning.tune import robust_accuracy_under, tune, with_clean_accuracy

# Cost of a step of an attack and of a training step, in predictions of both models: to estimate the time of a training.
PASSES_PER_ATTACK_STEP, PASSES_PER_STEP = 1.5, 6.0
# Validation images that a search attacks on a CPU.
FEW = 100


class Attacked(NamedTuple):
    """Robust accuracies of the mixture and of H under the preset `fast`."""

    images: int
    mixture: float
    robust: float


class MadeMixture(NamedTuple):
    """A mixture at its operating point, and what was measured on validation images.

    `accuracy` is its clean accuracy at every setting, `fixed` that of every fixed alpha: 0 is G alone, 1 is H alone.
    `facts` are those of the training or of the search.
    """

    mixed: MixedClassifier
    accuracy: CleanAccuracyCurve
    fixed: CleanAccuracyCurve
    attacked: Attacked | None
    facts: dict[str, Any]


def make(plan: MixPlan, console: Console) -> MadeMixture:
    """Return the mixture of a plan. An error for models that do not suit comes before anything is written."""
    start = time.perf_counter()
    fixed = _fixed_alpha_curve(plan, console)
    untuned = _make_untuned(plan, (time.perf_counter() - start) / len(plan.pair.val), console)
    known = fixed if plan.mode is Mode.fixed and not plan.options.search else None
    searched, confirmed = _images_to_attack(plan.options.attacked, plan.training.device)
    mixed = _tune(untuned, known, plan, searched, console)
    attacked = _attack(mixed, plan, confirmed, console)
    accuracy = known or _measure_curve(mixed, plan.pair.val, console)
    return MadeMixture(mixed, accuracy, fixed, attacked, untuned.card)


def _fixed_alpha_curve(plan: MixPlan, console: Console) -> CleanAccuracyCurve:
    """Return the clean accuracy at every fixed alpha; raise an error if the target is too high for this pair."""
    curve = _measure_curve(_fixed_mixture(plan), plan.pair.val, console)
    _check_order(plan, curve(0), curve(1))
    if plan.target.clean_accuracy is not None:
        curve.largest_setting(plan.target.clean_accuracy)
    return curve


def _check_order(plan: MixPlan, standard: float, robust: float) -> None:
    """Raise an error unless G is more accurate than H; an alpha of the user is used anyway, with a warning."""
    if standard > robust:
        return
    found = f"{plan.pair.standard} with {100 * standard:.2f} % and {plan.pair.robust} with {100 * robust:.2f} %"
    hint = "name G first, then H"
    if standard == robust:
        hint = "they are equally accurate, so that a mixture gains nothing; use a more accurate G"
    if plan.target.name != "alpha":
        raise ValueError(f"expected a G that is more accurate than H, got {found} on validation images: {hint}")
    used = f"alpha = {plan.target.value:g} is used anyway"
    warn_user(f"G is not more accurate than H ({found} on validation images); {used}: {hint}")


def _fixed_mixture(plan: MixPlan) -> MixedClassifier:
    """Return the mixture with an alpha of 1/2."""
    return MixedClassifier(plan.pair.g, plan.pair.h, 0.5, standard_scale=plan.standard_scale)


def _measure_curve(mixed: MixedClassifier, val: ImageData, console: Console) -> CleanAccuracyCurve:
    """Return the clean accuracy at every setting of a mixture, showing the progress."""
    with TimeBar(console) as bar:
        return accuracy_curve(mixed, val, progress=Count(bar, len(val), "validation images predicted"))


def _make_untuned(plan: MixPlan, seconds_per_image: float, console: Console) -> MixedClassifier:
    """Return the mixture before its operating point is chosen, which trains or searches in some modes.

    Args:
        seconds_per_image: the time of a prediction of both models.
    """
    if plan.overwrite and not plan.training.resume:
        plan.training.checkpoint.unlink(missing_ok=True)
    if plan.recipe:
        console.print(_training_notice(plan.recipe, plan, seconds_per_image))
        return _train(plan.pair, plan.recipe, plan.training)
    if plan.mode is Mode.nonlinear:
        return _search_nonlinear(plan, console)
    return _fixed_mixture(plan)


def _training_notice(recipe: MixingRecipe, plan: MixPlan, seconds_per_image: float) -> str:
    """Return what is trained, on a CPU with the time it will take, estimated from the time of a prediction."""
    images, epochs = len(plan.pair.train), recipe.optimizer.epochs
    text = f"Training a mixer on {images:,} images in {epochs} epoch{'s' * (epochs != 1)}."
    if plan.training.device == "cpu":
        passes = PASSES_PER_ATTACK_STEP * recipe.attack.steps + PASSES_PER_STEP
        seconds = seconds_per_image * passes * images * epochs
        text += f" On this CPU it takes about {clock(seconds)} (minutes:seconds); Ctrl-C stops it, --resume continues."
    if plan.data == DATA:
        text += f" {images:,} images are few: --data cifar10 gives a better mixer."
    return text


def _train(pair: Pair, recipe: MixingRecipe, options: TrainingOptions) -> MixedClassifier:
    """Return the mixture with a trained mixer, and with facts about the training in its card."""
    start = time.perf_counter()
    mixed = fit_adaptive(pair.g, pair.h, pair.train, pair.val, recipe, options)
    facts = training_facts(recipe, len(pair.train), time.perf_counter() - start, options.device)
    mixed.card = facts | {"resumed": options.resume}
    return mixed


def _search_nonlinear(plan: MixPlan, console: Console) -> MixedClassifier:
    """Return the MixedNUTS mixture with the target, showing what is being attacked."""
    images, _ = _images_to_attack(plan.options.attacked, plan.training.device)
    g, h, val = plan.pair.g, plan.pair.h, plan.pair.val
    with TimeBar(console) as bar:

        def log(text: str) -> None:
            bar.report(text, None)

        return fit_nonlinear(g, h, val, plan.threat, clean_accuracy=plan.target.value, attacked=images, log=log)


def _images_to_attack(asked: int | None, device: str) -> tuple[int, int]:
    """Return the number of validation images to attack in a search, and at the end.

    On a CPU the attack at the end takes minutes, so it is made only if it was asked for.
    """
    searched, confirmed = (ATTACKED, ATTACKED) if device.startswith("cuda") else (FEW, 0)
    return asked or searched, confirmed if asked is None else asked


def _tune(
    mixed: MixedClassifier, known: CleanAccuracyCurve | None, plan: MixPlan, images: int, console: Console
) -> MixedClassifier:
    """Return the mixture at the operating point of the target, which takes attacks unless it is a clean accuracy.

    `known` is the clean accuracy of the mixture at every setting, if it has been measured.
    """
    target, val, clean = plan.target, plan.pair.val, plan.target.clean_accuracy
    if target.name == "alpha":
        return at_setting(mixed, target.value)
    if clean is not None and not plan.options.search:
        return with_clean_accuracy(mixed, known or _measure_curve(mixed, val, console), clean)
    tune_under_attack = partial(tune, mixed, val, threat=plan.threat, attacked=images, log=console.print)
    with TimeBar(console) as bar:
        bar.report(f"attacking {min(len(val), images):,} validation images several times", None)
        if clean is None:
            return tune_under_attack(robust_accuracy=target.value)
        return tune_under_attack(clean_accuracy=clean)


def _attack(mixed: MixedClassifier, plan: MixPlan, images: int, console: Console) -> Attacked | None:
    """Attack the mixture and H on the first validation images; return None if there are no images to attack."""
    if not images:
        return None
    few = plan.pair.val.take(slice(images))
    robust = robust_accuracy_under(few, plan.threat)
    with TimeBar(console) as bar:
        bar.report(f"attacking {len(few):,} validation images", None)
        return Attacked(len(few), robust(mixed), robust(plan.pair.h))
