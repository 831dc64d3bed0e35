"""Certification by randomized smoothing: choose a class, bound its probability on other samples, compute the radius."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.certification.bounds import PROBABILITIES, VOTES, Betting, clopper_pearson
from adaptive_smoothing.certification.options import SmoothingOptions
from adaptive_smoothing.certification.radius import BISECTIONS, SMOOTHING_THEOREMS, check_alpha, check_sigma
from adaptive_smoothing.certification.sampling import BLOCK, Sampler, Tally
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.runs.journal import Columns
from adaptive_smoothing.runs.progress import ProgressCallback, ignore_progress


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Certifier of a smoothed h, or of a mixture with it.

    `options.selection` samples choose the class that h predicts. `options.samples` others bound its probability: by
    Clopper-Pearson for hard votes, by betting for soft votes and for early stopping.
    """

    name: ClassVar[str] = "smoothing"
    norm: ClassVar[str] = "L2"

    robust: SmoothedClassifier
    alpha: float = 1.0
    options: SmoothingOptions = field(default_factory=SmoothingOptions)

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_sigma(self.robust.sigma)

    @cached_property
    def sampler(self) -> Sampler:
        h, options = self.robust, self.options
        return Sampler(h.base, h.sigma, h.hard, options.seed, options.precision, options.compiled, options.batch_size)

    @property
    def settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "method": self.name,
            "sigma": float(self.robust.sigma),
            "votes": "hard" if self.robust.hard else "soft",
            "theorem": options.theorem,
            "bound": self._bound,
            "runner-up": self._runner_up,
            "samples": int(options.samples),
            "selection": int(options.selection),
            "failure probability": options.failure_probability,
            "wanted radius": options.radius,
            "give up": options.give_up,
            "precision": options.precision,
            "compiled": options.compiled,
            "seed": options.seed,
        }

    @property
    def _bound(self) -> str:
        return "clopper-pearson" if self.robust.hard and self.options.radius is None else "betting"

    @property
    def _runner_up(self) -> str:
        if self.options.runner_up is not None:
            return self.options.runner_up
        return "complement" if self.robust.hard or self.options.radius is not None else "split"

    def certify(self, images: Tensor, index: Tensor, progress: ProgressCallback = ignore_progress) -> Columns:
        """Return the columns that `certify.Certifier` lists."""
        selected = self._select(images, index)
        order = selected.argsort(descending=True, stable=True)
        classes = order if self._runner_up == "split" else order[:, :1]
        tally = Tally(classes, selected.shape[1], self.sampler.values)
        if self.options.radius is None:
            done, total = 0, len(images) * self.options.samples
            for rows, outputs in self.sampler.draw(images, index, "estimation", 0, self.options.samples):
                tally.add(rows, outputs)
                done += len(rows)
                progress(done / total)
            error, runner_up = self._bounds(tally)
        else:
            error = runner_up = self._decide(tally, images, index, progress)
        # If no image can reach the wanted radius, only the samples that chose the class were drawn.
        mean = np.where(tally.samples()[:, None] > 0, tally.mean(), selected.cpu().numpy() / self.options.selection)
        top, second = -np.sort(-mean, axis=1)[:, :2].T
        return {
            "robust_class": classes[:, 0].cpu().numpy(),
            "lower": 1 - error,
            "upper": runner_up,
            "radius": self._radius(1 - error, runner_up),
            "estimate": self._radius(top, second),
            "samples": tally.samples() + self.options.selection,
            "probabilities": mean.astype(np.float32),
        }

    def _select(self, images: Tensor, index: Tensor) -> Tensor:
        """Return sums [N, C] of outputs, which choose the class. A bound needs other samples than this choice."""
        sums = torch.zeros(0)
        for rows, outputs in self.sampler.draw(images, index, "selection", 0, self.options.selection):
            if not len(sums):
                sums = outputs.new_zeros(len(images), outputs.shape[1], dtype=torch.float64)
            sums.index_add_(0, rows, outputs.double())
        return sums

    def _bounds(self, tally: Tally) -> tuple[np.ndarray, np.ndarray]:
        """Return upper bounds on the error of the class that h predicts, and on the probability of the runner-up."""
        classes = tally.classes.shape[1]
        chance, values = self.options.failure_probability / classes, self.sampler.values
        upper = [_upper(self._bound, tally.counts(k), self.options.samples, chance, values) for k in range(classes)]
        runner_up = np.minimum(np.max(upper[1:], axis=0), upper[0]) if classes > 1 else upper[0]
        return upper[0], runner_up

    def _decide(self, tally: Tally, images: Tensor, index: Tensor, progress: ProgressCallback) -> np.ndarray:
        """Sample every image until the radius is certified or unlikely, and return upper bounds on the errors.

        The bounds hold no matter when sampling stops.
        """
        samples, values, bets = self.options.samples, self.sampler.values, Betting()
        allowed = self._allowed_error()
        active, done = torch.arange(len(images), device=images.device), 0
        decided = np.zeros(len(images), dtype=bool)
        while len(active) and done < samples and allowed > 0:
            # Checking after a quarter more samples costs a few percent more samples than checking after each.
            following = min(samples, done + max(BLOCK, done // 4))
            for rows, outputs in self.sampler.draw(images[active], index[active], "estimation", done, following):
                tally.add(active[rows], outputs)
            done = following
            which = active.cpu().numpy()
            counts = tally.counts()[which]
            certain = bets.log_capital(counts, allowed, values) >= -np.log(self.options.failure_probability)
            unlikely = bets.log_capital_above(counts, allowed, values) >= -np.log(self.options.give_up)
            decided[which] = certain
            active = active[torch.from_numpy(~(certain | unlikely)).to(active.device)]
            progress(1 - len(active) / len(images))
        bound = bets.upper(tally.counts(), self.options.failure_probability, values)
        # The bound is rounded up to a grid, the decision is exact.
        return np.where(decided, np.minimum(bound, allowed), bound)

    def _allowed_error(self) -> float:
        """Return the largest error with which an image has the wanted radius; 0 if there is none."""
        low, high = 0.0, 0.5
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            enough = self._radius(np.array(1 - middle), np.array(middle)) >= self.options.radius
            low, high = (middle, high) if enough else (low, middle)
        return low

    def _radius(self, top: np.ndarray, runner_up: np.ndarray) -> np.ndarray:
        theorem = SMOOTHING_THEOREMS[self.options.theorem]
        return theorem(top, np.minimum(runner_up, 1), self.robust.sigma, self.alpha)


def _upper(bound: str, counts: np.ndarray, samples: int, chance: float, values: np.ndarray) -> np.ndarray:
    """Return upper bounds on mean errors, from how often each of `values` was observed."""
    if bound == "clopper-pearson":
        return clopper_pearson(counts[:, -1], samples, chance)
    return Betting().upper(counts, chance, values)


def reachable_radius(settings: Mapping[str, Any], classes: int) -> float:
    """Return the largest L2 radius that a certification can show: that of an image whose samples all agree.

    Without sampling, or with a bound of an earlier version, it is infinity.

    Args:
        settings: settings of the certification, as stored in result.json.
    """
    if settings["method"] != "smoothing" or settings["bound"] not in ("clopper-pearson", "betting"):
        return float("inf")
    samples = settings["samples"]
    chance = settings["failure probability"] / (classes if settings["runner-up"] == "split" else 1)
    values = VOTES if settings["votes"] == "hard" else PROBABILITIES
    error = _upper(settings["bound"], np.array([[samples] + [0] * (len(values) - 1)]), samples, chance, values)
    theorem = SMOOTHING_THEOREMS[settings["theorem"]]
    return float(theorem(1 - error, error, settings["sigma"], settings["alpha"])[0])
