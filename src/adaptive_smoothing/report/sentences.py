"""A finished measurement, and what it says in sentences. Every number comes out of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.comparison import LearnedAlphaResult
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.results import difference, interval

# With fewer images a 95 % interval is wider than 20 points: a quotient of two such accuracies means nothing.
FEW = 100


@dataclass(frozen=True)
class Share:
    """An accuracy with its 95 % bounds; without bounds where it lies between two measured alphas."""

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
        """How far the target can be trusted on other images: the fewer alpha was chosen on, the less."""
        return Share(self.accuracy, interval(round(self.accuracy * self.images), self.images))


@dataclass(frozen=True)
class Report:
    """A measurement to report: `main` carries the numbers; `live` is a smaller run made just now; `learned` is about an
    alpha that a network gives each image.
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
    return f"{100 * value:.1f} %"


def share(right: np.ndarray) -> Share:
    return Share(float(right.mean()), interval(int(right.sum()), len(right)))


def at(tradeoff: Tradeoff, curve: str, alpha: float) -> Share:
    """Accuracy of a curve at alpha: as measured there, or on the line between its neighbours."""
    alphas = tradeoff.alphas_of(curve)
    nearest = int(np.abs(alphas - alpha).argmin())
    if abs(alphas[nearest] - alpha) < 1e-6:
        return share(tradeoff.correct(curve)[nearest])
    return Share(float(np.interp(alpha, alphas, tradeoff.accuracy(curve))))


def alone(tradeoff: Tradeoff, model: str) -> tuple[Share, Share]:
    """Clean accuracy of g or h by itself, and its accuracy under the attack made on it."""
    clean = tradeoff.rows[f"clean_{model}"]
    return share(clean), share(clean & tradeoff.rows["std_g" if model == "g" else "rob_h"])


def threat_words(settings: dict[str, Any]) -> str:
    """What the attacker may do, for a reader who has never seen a norm."""
    eps = settings["eps"]
    level = Fraction(eps * 255).limit_denominator(100)
    radius = f"{level}/255" if abs(level / 255 - Fraction(eps)) < 1e-7 and level.denominator == 1 else f"{eps:g}"
    if settings["norm"] == "Linf":
        return f"change every pixel by up to {radius}"
    return f"change the image by a vector of {settings['norm']} length up to {radius}"


def images_word(settings: dict[str, Any]) -> str:
    """What the images are, from the split at the end of the data's name: `cifar10/val`."""
    split = settings["data"].rpartition("/")[2]
    return {"test": "test images", "val": "validation images"}.get(split, "images")


def sentences(report: Report) -> Iterator[str]:
    """The story, one paragraph at a time."""
    if report.facts.get("interrupted"):
        yield _the_interruption(report)
    yield _the_pair(report.main)
    if report.choice is not None:
        yield _the_mixture(report.main, report.choice)
        yield _the_attacks(report.main, report.choice.alpha)
    yield _the_reason(report.main, report.alpha)
    if report.learned is not None and report.choice is not None:
        yield _the_learned_alpha(report.learned, report.choice)
    if report.live is not None:
        yield _the_live_run(report.main, report.live, report.alpha)


def _the_interruption(report: Report) -> str:
    what = "The live run" if report.live else "This run"
    return f"{what} was interrupted: it is about the {(report.live or report.main).images:,} images done until then."


def _the_pair(run: Tradeoff) -> str:
    (g_clean, g_attacked), (h_clean, h_attacked) = alone(run, "g"), alone(run, "h")
    return (
        f"On {run.images:,} {images_word(run.settings)}, g, the standard classifier, is right on "
        f"{percent(g_clean.value)}. Against an attacker who may {threat_words(run.settings)} (PGD, "
        f"{run.settings['steps']} steps), it is right on {percent(g_attacked.value)}. h, the robust classifier, is "
        f"right on {percent(h_clean.value)}, and on {percent(h_attacked.value)} under the same attack."
    )


def _the_mixture(run: Tradeoff, choice: Choice) -> str:
    clean, worst = at(run, "clean", choice.alpha).value, at(run, "worst", choice.alpha).value
    return (
        f"The mixture (1 − α) g + α h of their probabilities needs no training. α = {choice.alpha:.3f} is "
        f"the largest weight of h that reaches the wanted clean accuracy of {percent(choice.wanted)} on "
        f"{choice.images:,} validation images: {choice.reached} there. On the {images_word(run.settings)} it "
        f"is right on {percent(clean)}, and on {percent(worst)} under every attack that was tried. "
        f"{_beside_h(run, clean, worst)}"
    )


def _beside_h(run: Tradeoff, clean: float, worst: float) -> str:
    h_clean, h_attacked = (part.value for part in alone(run, "h"))
    if run.images < FEW:
        return f"h has {percent(h_clean)} and {percent(h_attacked)}; on so few images the difference says little."
    kept = f"{percent(worst / h_attacked)} of h's robustness" if h_attacked else "no robustness, as h has none"
    kept = "all of h's robustness" if worst >= h_attacked > 0 else kept
    return f"That is {kept}, with {_points(clean - h_clean)} clean accuracy than h."


def _points(difference: float) -> str:
    return f"{100 * abs(difference):.1f} points {'more' if difference >= 0 else 'less'}"


def _the_attacks(run: Tradeoff, alpha: float) -> str:
    left = {curve: at(run, curve, alpha).value for curve in ("std", "rob", "mix")}
    words = (
        f"Attacks made on g alone (STD) leave {percent(left['std'])} at this α, those made on h alone (ROB) "
        f"{percent(left['rob'])}, the attack on the mixture itself, with all its gradients (MIX), "
        f"{percent(left['mix'])}; {percent(at(run, 'worst', alpha).value)} stand all three. "
    )
    strongest = left["mix"] <= min(left["std"], left["rob"])
    words += f"MIX is {'' if strongest else 'not '}the strongest of them{'' if strongest else ' here'}. "
    return words + (
        "Stronger attacks take more, of a mixture above all, as a g that is sure hides its gradient: "
        "see adaptive-smoothing evaluate --preset adaptive."
    )


def _the_reason(run: Tradeoff, alpha: float | None) -> str:
    gaps = run.gaps()
    right, wrong = gaps["h pgd"]["right_median"], gaps["h clean"]["wrong_median"]
    if right is None or wrong is None:
        return "These images cannot tell why: h is never right under attack on them, or never wrong without."
    sure = gaps["g clean"]["right_median"] or 0.0
    words = (
        "Why: what counts is how sure h is, the gap between its first and its second class. The median is "
        f"{right:.2f} where h is right under attack, and {wrong:.2f} where it is wrong on a clean image. "
        f"There g, with a median of {sure:.2f} where it is right, can correct it."
    )
    if alpha is None or not 0.5 <= alpha < 1:
        return words
    line = (1 - alpha) / alpha
    safe, stubborn = _beyond(run, "rob_h", True, line), _beyond(run, "clean_h", False, line)
    return (
        f"{words} At α = {alpha:.3f} nothing g says can overrule a gap above (1 − α) / α = {line:.2f}: "
        f"{safe} of h's right answers under attack have one, and {stubborn} of its wrong answers on clean "
        "images."
    )


def _beyond(run: Tradeoff, key: str, right: bool, line: float) -> str:
    gaps = run.rows[f"{key}_gap"][run.rows[key] == right]
    return percent(float((gaps > line).mean())) if len(gaps) else "none"


def _the_learned_alpha(learned: LearnedAlphaResult, choice: Choice) -> str:
    ours, fixed = learned.compare_with_fixed(choice.wanted)
    ahead, half = difference(ours.robust_correct, fixed.robust_correct)
    words = (
        "A network can give each image its own α. Trained for this pair and set to "
        f"{percent(ours.wanted or choice.wanted)} clean accuracy on validation images, it is right on "
        f"{percent(ours.accuracy)} of {len(ours.clean_correct):,} test images, and on {percent(ours.robust)} of "
        f"{len(ours.robust_correct):,} under the strongest attacks we have; one α for all images on "
        f"{percent(fixed.accuracy)} and {percent(fixed.robust)} of the same. That is {_points(ahead)} "
        f"(± {100 * half:.1f}) for the network."
    )
    if learned.measured is None:
        return words
    clean, stands = share(learned.measured.clean_correct), share(learned.measured.robust_correct)
    return f"{words} Just now, on {len(learned.measured.clean_correct):,} images: {clean} clean, {stands} under PGD."


def _the_live_run(run: Tradeoff, live: Tradeoff, alpha: float | None) -> str:
    words = (
        f"The points in the figure are a run made just now on {live.images:,} images; the lines are the "
        f"stored run of the same models on {run.images:,}."
    )
    if alpha is None:
        return words
    now = at(live, "worst", alpha)
    if now.bounds is None:
        return words
    stored = at(run, "worst", alpha).value
    inside = now.bounds[0] <= stored <= now.bounds[1]
    verdict = "holds" if inside else "does not hold, as happens to one interval in twenty,"
    return f"{words} Under all attacks it gave {now}; that 95 % interval {verdict} the stored {percent(stored)}."
