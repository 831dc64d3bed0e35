"""What a report of a trade-off is made of: the runs, the chosen alpha, and accuracies with their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.results import interval, percent, percent_with_interval

# Table tab:confidence of the paper: accuracy, mean gap of correct and of incorrect predictions.
PAPER_GAPS = {
    "g clean": (0.9528, 0.982, 0.698),
    "g pgd": (0.0010, 0.602, 0.998),
    "h clean": (0.8353, 0.854, 0.434),
    "h pgd": (0.4417, 0.768, 0.635),
}


@dataclass(frozen=True)
class MeasuredAccuracy:
    """An accuracy with its 95 % bounds. It has no bounds if it is interpolated between two measured alphas."""

    value: float
    bounds: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"≈{percent(self.value)}" if self.bounds is None else percent_with_interval(self.value, self.bounds)


@dataclass(frozen=True)
class Choice:
    """An alpha chosen on validation images for a wanted clean accuracy, and the accuracy it has there."""

    wanted: float
    alpha: float
    accuracy: float
    images: int

    @property
    def reached(self) -> MeasuredAccuracy:
        """The accuracy with its 95 % bounds, which are wider the fewer validation images there are."""
        return MeasuredAccuracy(self.accuracy, interval(round(self.accuracy * self.images), self.images))


@dataclass(frozen=True)
class Report:
    """A trade-off to report.

    Args:
        main: the run whose numbers are reported.
        choice: the alpha that was chosen for a wanted clean accuracy.
        facts: models, versions, seconds, and whether the run was interrupted.
    """

    main: Tradeoff
    choice: Choice | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def alpha(self) -> float | None:
        return self.choice.alpha if self.choice else None


def measured_accuracy(correct: np.ndarray) -> MeasuredAccuracy:
    """Return the share of correct images with its 95 % bounds."""
    return MeasuredAccuracy(float(correct.mean()), interval(int(correct.sum()), len(correct)))


def accuracy_at(tradeoff: Tradeoff, curve: str, alpha: float) -> MeasuredAccuracy:
    """Return the accuracy of a curve at alpha: as measured there, or interpolated between its neighbours."""
    alphas = tradeoff.alphas_of(curve)
    nearest = int(np.abs(alphas - alpha).argmin())
    if abs(alphas[nearest] - alpha) < 1e-6:
        return measured_accuracy(tradeoff.correct(curve)[nearest])
    return MeasuredAccuracy(float(np.interp(alpha, alphas, tradeoff.accuracy(curve))))


def base_accuracies(tradeoff: Tradeoff, model: str) -> tuple[MeasuredAccuracy, MeasuredAccuracy]:
    """Return the clean accuracy of g or h, and its accuracy under the attack made on it."""
    clean = tradeoff.rows[f"clean_{model}"]
    return measured_accuracy(clean), measured_accuracy(clean & tradeoff.rows["std_g" if model == "g" else "rob_h"])


def attack_name(run: Tradeoff) -> str:
    """Return the name of the attack of a run, for example PGD-20."""
    return f"PGD-{run.settings['steps']}"


def images_word(settings: dict[str, Any]) -> str:
    """Return a name for the images, from the split at the end of the name of the data: `cifar10/val`."""
    split = settings["data"].rpartition("/")[2]
    return {"test": "test images", "val": "validation images"}.get(split, "images")


def like_the_paper(settings: dict[str, Any]) -> bool:
    """Return whether the paper's models were measured in the same way: CIFAR-10, PGD-20 at Linf 8/255."""
    same_images = settings["data"].split("/")[0] in ("builtin", "cifar10")
    same_ball = settings["norm"] == "Linf" and abs(settings["eps"] - 8 / 255) < 1e-6
    return same_images and same_ball and settings["steps"] == 20
