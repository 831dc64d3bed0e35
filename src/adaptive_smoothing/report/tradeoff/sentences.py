"""The report of a trade-off in words. Every number is computed from the rows of its run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.tradeoff.report import (
    Choice,
    Report,
    accuracy_at,
    base_accuracies,
    images_word,
)
from adaptive_smoothing.results import percent
from adaptive_smoothing.threat import radius_text

# With fewer images a 95 % interval is wider than 20 points, so the ratio of two accuracies means nothing.
FEW = 100


def sentences(report: Report) -> Iterator[str]:
    """Yield the report in words, one paragraph at a time."""
    if report.facts.get("interrupted"):
        yield f"This run was interrupted: its numbers are for the {report.main.images:,} images that were finished."
    yield _base_classifiers(report.main)
    if report.choice is not None:
        yield _mixture(report.main, report.choice)
        yield _attacks(report.main, report.choice.alpha)
    yield _confidence(report.main, report.alpha)


def threat_words(settings: dict[str, Any]) -> str:
    """Return what the attacker may do, for a reader who does not know norms."""
    radius = radius_text(settings["norm"], settings["eps"])
    if settings["norm"] == "Linf":
        return f"change every pixel by up to {radius}"
    return f"change the image by a vector of {settings['norm']} length up to {radius}"


def _base_classifiers(run: Tradeoff) -> str:
    (g_clean, g_attacked), (h_clean, h_attacked) = base_accuracies(run, "g"), base_accuracies(run, "h")
    return (
        f"On {run.images:,} {images_word(run.settings)}, the standard classifier g is correct on "
        f"{percent(g_clean.value)}. An attacker may {threat_words(run.settings)} (PGD, {run.settings['steps']} steps). "
        f"Under this attack g is correct on {percent(g_attacked.value)}. The robust classifier h is correct on "
        f"{percent(h_clean.value)}, and on {percent(h_attacked.value)} under attack."
    )


def _mixture(run: Tradeoff, choice: Choice) -> str:
    clean, worst = accuracy_at(run, "clean", choice.alpha).value, accuracy_at(run, "worst", choice.alpha).value
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
    more = f"{_more_or_less(clean - h_clean)} clean accuracy than h"
    if not h_attacked:
        return f"It has {more}. h has no robust accuracy on these images."
    kept = "all" if worst >= h_attacked else percent(worst / h_attacked)
    return f"It keeps {kept} of the robust accuracy of h, and has {more}."


def _more_or_less(difference: float) -> str:
    """Return a difference of two shares in words, for example `1.2 points more`."""
    return f"{100 * abs(difference):.1f} points {'more' if difference >= 0 else 'less'}"


def _attacks(run: Tradeoff, alpha: float) -> str:
    left = {curve: accuracy_at(run, curve, alpha).value for curve in ("std", "rob", "mix")}
    strongest = left["mix"] <= min(left["std"], left["rob"])
    return (
        f"At this α, {percent(left['std'])} of the images are correct under the attack on g (STD), "
        f"{percent(left['rob'])} under the attack on h (ROB), and {percent(left['mix'])} under the attack on the "
        f"mixture itself (MIX). {percent(accuracy_at(run, 'worst', alpha).value)} are correct under all three. MIX is "
        f"{'' if strongest else 'not '}the strongest of them. Stronger attacks than PGD give lower numbers, above all "
        "for a mixture, because a confident g hides its gradient. To measure them, run adaptive-smoothing evaluate "
        "with --attack adaptive."
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
        "clean image. A small gap of h can be overruled by g, whose median gap is "
        f"{gaps['g clean']['right_median'] or 0.0:.2f} where it is correct."
    )
    if alpha is None or not 0.5 <= alpha < 1:
        return words
    limit, rows = (1 - alpha) / alpha, run.rows
    correct_above = (rows["rob_h_gap"][rows["rob_h"]] > limit).mean()
    incorrect_above = (rows["clean_h_gap"][~rows["clean_h"]] > limit).mean()
    return (
        f"{words} At α = {alpha:.3f}, g cannot overrule h where the gap of h is above (1 − α) / α = {limit:.2f}. The "
        f"gap is above this limit for {percent(correct_above)} of the correct predictions of h under attack, and for "
        f"{percent(incorrect_above)} of its incorrect predictions on clean images."
    )
