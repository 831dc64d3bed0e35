"""A finished measurement in words. Every number is computed from its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.comparison import LearnedAlphaResult
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.results import difference, interval

# With fewer images a 95 % interval is wider than 20 points, so the ratio of two accuracies means nothing.
FEW = 100


@dataclass(frozen=True)
class Share:
    """An accuracy with its 95 % bounds. It has no bounds if it is interpolated between two measured alphas."""

    value: float
    bounds: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.bounds is None:
            return f"≈{percent(self.value)}"
        low, high = self.bounds
        return f"{percent(self.value)} ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True)
class Choice:
    """An alpha chosen on validation images for a wanted clean accuracy, and the accuracy it has there."""

    wanted: float
    alpha: float
    accuracy: float
    images: int

    @property
    def reached(self) -> Share:
        """The accuracy with its 95 % bounds, which are wider the fewer validation images there are."""
        return Share(self.accuracy, interval(round(self.accuracy * self.images), self.images))


@dataclass(frozen=True)
class Report:
    """A measurement to report.

    Args:
        main: the run whose numbers are reported.
        live: a smaller run that was made just now, as a check of a stored `main`.
        choice: the alpha that was chosen for a wanted clean accuracy.
        facts: models, versions, seconds, and whether the run was interrupted.
        learned: a comparison with an alpha that a network chooses for each image.
    """

    main: Tradeoff
    live: Tradeoff | None = None
    choice: Choice | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    learned: LearnedAlphaResult | None = None

    @property
    def alpha(self) -> float | None:
        return self.choice.alpha if self.choice else None


def percent(value: float) -> str:
    """Return a share in percent, for example 90.1 %."""
    return f"{100 * value:.1f} %"


def share(correct: np.ndarray) -> Share:
    """Return the share of correct images with its 95 % bounds."""
    return Share(float(correct.mean()), interval(int(correct.sum()), len(correct)))


def at(tradeoff: Tradeoff, curve: str, alpha: float) -> Share:
    """Return the accuracy of a curve at alpha: as measured there, or interpolated between its neighbours."""
    alphas = tradeoff.alphas_of(curve)
    nearest = int(np.abs(alphas - alpha).argmin())
    if abs(alphas[nearest] - alpha) < 1e-6:
        return share(tradeoff.correct(curve)[nearest])
    return Share(float(np.interp(alpha, alphas, tradeoff.accuracy(curve))))


def base_accuracies(tradeoff: Tradeoff, model: str) -> tuple[Share, Share]:
    """Return the clean accuracy of g or h, and its accuracy under the attack made on it."""
    clean = tradeoff.rows[f"clean_{model}"]
    return share(clean), share(clean & tradeoff.rows["std_g" if model == "g" else "rob_h"])


def threat_words(settings: dict[str, Any]) -> str:
    """Return what the attacker may do, for a reader who does not know norms."""
    eps = settings["eps"]
    level = Fraction(eps * 255).limit_denominator(100)
    radius = f"{level}/255" if abs(level / 255 - Fraction(eps)) < 1e-7 and level.denominator == 1 else f"{eps:g}"
    if settings["norm"] == "Linf":
        return f"change every pixel by up to {radius}"
    return f"change the image by a vector of {settings['norm']} length up to {radius}"


def images_word(settings: dict[str, Any]) -> str:
    """Return a name for the images, from the split at the end of the name of the data: `cifar10/val`."""
    split = settings["data"].rpartition("/")[2]
    return {"test": "test images", "val": "validation images"}.get(split, "images")


def sentences(report: Report) -> Iterator[str]:
    """Yield the report in words, one paragraph at a time."""
    if report.facts.get("interrupted"):
        what, images = "The live run" if report.live else "This run", (report.live or report.main).images
        yield f"{what} was interrupted: its numbers are for the {images:,} images that were finished."
    yield _base_classifiers(report.main)
    if report.choice is not None:
        yield _mixture(report.main, report.choice)
        yield _attacks(report.main, report.choice.alpha)
    yield _confidence(report.main, report.alpha)
    if report.learned is not None and report.choice is not None:
        yield _learned_alpha(report.learned, report.choice)
    if report.live is not None:
        yield _live_run(report.main, report.live, report.alpha)


def _base_classifiers(run: Tradeoff) -> str:
    (g_clean, g_attacked), (h_clean, h_attacked) = base_accuracies(run, "g"), base_accuracies(run, "h")
    return (
        f"On {run.images:,} {images_word(run.settings)}, the standard classifier g is correct on "
        f"{percent(g_clean.value)}. An attacker may {threat_words(run.settings)} (PGD, {run.settings['steps']} steps). "
        f"Under this attack g is correct on {percent(g_attacked.value)}. The robust classifier h is correct on "
        f"{percent(h_clean.value)}, and on {percent(h_attacked.value)} under attack."
    )


def _mixture(run: Tradeoff, choice: Choice) -> str:
    clean, worst = at(run, "clean", choice.alpha).value, at(run, "worst", choice.alpha).value
    return (
        f"The mixture (1 − α) g + α h of their probabilities needs no training. The largest α with a clean accuracy of "
        f"{percent(choice.wanted)} is {choice.alpha:.3f}, with {choice.reached} on {choice.images:,} validation "
        f"images. On the {images_word(run.settings)} the mixture is correct on {percent(clean)}, and on "
        f"{percent(worst)} under all three attacks of this run. {_compared_with_h(run, clean, worst)}"
    )


def _compared_with_h(run: Tradeoff, clean: float, worst: float) -> str:
    h_clean, h_attacked = (part.value for part in base_accuracies(run, "h"))
    if run.images < FEW:
        return f"h has {percent(h_clean)} and {percent(h_attacked)}. So few images do not show small differences."
    more = f"{_points(clean - h_clean)} clean accuracy than h"
    if not h_attacked:
        return f"It has {more}. h has no robust accuracy on these images."
    kept = "all" if worst >= h_attacked else percent(worst / h_attacked)
    return f"It keeps {kept} of h's robust accuracy, and has {more}."


def _points(difference: float) -> str:
    return f"{100 * abs(difference):.1f} points {'more' if difference >= 0 else 'less'}"


def _attacks(run: Tradeoff, alpha: float) -> str:
    left = {curve: at(run, curve, alpha).value for curve in ("std", "rob", "mix")}
    strongest = left["mix"] <= min(left["std"], left["rob"])
    return (
        f"At this α, {percent(left['std'])} are correct under the attack on g (STD), {percent(left['rob'])} under the "
        f"attack on h (ROB), and {percent(left['mix'])} under the attack on the mixture itself (MIX). "
        f"{percent(at(run, 'worst', alpha).value)} are correct under all three. MIX is {'' if strongest else 'not '}"
        "the strongest of them. Attacks stronger than PGD leave less, above all of a mixture, because a confident g "
        "hides its gradient: run adaptive-smoothing evaluate with --preset adaptive."
    )


def _confidence(run: Tradeoff, alpha: float | None) -> str:
    gaps = run.gaps()
    correct, incorrect = gaps["h pgd"]["right_median"], gaps["h clean"]["wrong_median"]
    if correct is None or incorrect is None:
        reason = "h is never correct under attack on them, or never incorrect without one"
        return f"These images cannot show why mixing works: {reason}."
    words = (
        "Mixing depends on the confidence gap of h: the probability of its first class minus that of its second. The "
        f"median gap is {correct:.2f} where h is correct under attack, and {incorrect:.2f} where h is incorrect on a "
        f"clean image. There g, with a median gap of {gaps['g clean']['right_median'] or 0.0:.2f} where it is correct, "
        "can correct h."
    )
    if alpha is None or not 0.5 <= alpha < 1:
        return words
    limit, rows = (1 - alpha) / alpha, run.rows
    correct_above = (rows["rob_h_gap"][rows["rob_h"]] > limit).mean()
    incorrect_above = (rows["clean_h_gap"][~rows["clean_h"]] > limit).mean()
    return (
        f"{words} At α = {alpha:.3f}, g cannot overrule h where the gap of h is above (1 − α) / α = {limit:.2f}: this "
        f"is so for {percent(correct_above)} of h's correct predictions under attack, and for "
        f"{percent(incorrect_above)} of its incorrect predictions on clean images."
    )


def _learned_alpha(learned: LearnedAlphaResult, choice: Choice) -> str:
    ours, fixed = learned.compare_with_fixed(choice.wanted)
    ahead, half = difference(ours.robust_correct, fixed.robust_correct)
    words = (
        f"A network can choose α for each image. One that was trained for this pair, and tuned to "
        f"{percent(ours.wanted or choice.wanted)} clean accuracy on validation images, is correct on "
        f"{percent(ours.accuracy)} of {len(ours.clean_correct):,} test images. Under the strongest attacks of this "
        f"package it is correct on {percent(ours.robust)} of {len(ours.robust_correct):,} images. One α for all images "
        f"is correct on {percent(fixed.accuracy)} and {percent(fixed.robust)} of the same images. The network "
        f"has {_points(ahead)} robust accuracy (± {100 * half:.1f})."
    )
    if learned.measured is None:
        return words
    images = len(learned.measured.clean_correct)
    clean, robust = share(learned.measured.clean_correct), share(learned.measured.robust_correct)
    return f"{words} In the live run, on {images:,} images, it has {clean} clean, {robust} under PGD."


def _live_run(run: Tradeoff, live: Tradeoff, alpha: float | None) -> str:
    words = (
        f"In the figure, the points are the live run on {live.images:,} images, and the lines are the stored run of "
        f"the same models on {run.images:,} images."
    )
    if alpha is None or (now := at(live, "worst", alpha)).bounds is None:
        return words
    stored = at(run, "worst", alpha).value
    outcome = f"contains the stored {percent(stored)}"
    if not now.bounds[0] <= stored <= now.bounds[1]:
        outcome = f"does not contain the stored {percent(stored)}, as happens for one interval in twenty"
    return f"{words} Under all attacks the live run gave {now}. This 95 % interval {outcome}."
