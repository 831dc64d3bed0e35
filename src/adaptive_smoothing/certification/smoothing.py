"""Randomized smoothing with a guarantee: choose a class, bound its probability on other samples, turn it into a
radius."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptive_smoothing.certification import bounds
from adaptive_smoothing.certification import radius as radii
from adaptive_smoothing.certification.bounds import Betting
from adaptive_smoothing.certification.sampling import BLOCK, Sampler, Tally
from adaptive_smoothing.certification.telling import Tell, nothing

THEOREMS: dict[str, Callable[..., np.ndarray]] = {
    "margin": radii.smoothing_margin_radius,
    "paper": radii.smoothing_radius,
    "lipschitz": radii.smoothed_lipschitz_radius,
}
BOUNDS = ("clopper-pearson", "betting", "bernstein", "chernoff")
RUNNERS_UP = ("complement", "split")
# Halvings of [0, 1/2] in search of the doubt that a radius allows.
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """How images are certified by sampling; what they are certified with is the sampler's.

    `selection` samples choose the class that h says, `samples` others bound its probability. `bound` is
    clopper-pearson for votes and betting, bernstein or chernoff for probabilities. The runner-up is what is left of 1
    (`complement`, which suits votes), or every class has a bound and an equal part of the failure probability
    (`split`, which suits probabilities: much of them is on no class in particular). With a `radius`, sampling ends as
    soon as it is decided, or given up with a chance of `give_up` of being wrong, and after `samples` in any case.
    """

    name: ClassVar[str] = "smoothing"
    norm: ClassVar[str] = "L2"

    sampler: Sampler
    alpha: float = 1.0
    samples: int = 10_000
    selection: int = BLOCK
    failure_probability: float = 0.001
    bound: str | None = None
    runner_up: str | None = None
    theorem: str = "margin"
    radius: float | None = None
    give_up: float = 0.01

    def __post_init__(self) -> None:
        radii.needed_margin(self.alpha)
        bounds.check_samples(self.samples)
        bounds.check_samples(self.selection)
        for chance in (self.failure_probability, self.give_up):
            bounds.check_failure_probability(chance)
        for what, value, known in (
            ("bound", self.bound or BOUNDS[0], BOUNDS),
            ("runner-up", self.runner_up or RUNNERS_UP[0], RUNNERS_UP),
            ("theorem", self.theorem, THEOREMS),
        ):
            if value not in known:
                raise ValueError(f"expected a {what} among {', '.join(known)}, got {value!r}")
        if self.bound == "clopper-pearson" and not self.sampler.hard:
            raise ValueError(
                "expected betting, bernstein or chernoff for means of probabilities, got clopper-pearson, which holds "
                "for votes only: choose another bound, or hard votes"
            )
        if self.radius is not None and not (self.radius > 0 and np.isfinite(self.radius)):
            raise ValueError(f"expected a wanted radius above 0, got {self.radius}: leave it out to find the largest")
        if self.radius is not None and (self._runner_up != "complement" or self.bound not in (None, "betting")):
            raise ValueError(
                "expected betting on the complement with a wanted radius: others do not allow to stop early"
            )

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "sigma": float(self.sampler.sigma),
            "votes": "hard" if self.sampler.hard else "soft",
            "theorem": self.theorem,
            "bound": self._bound,
            "runner-up": self._runner_up,
            "samples": int(self.samples),
            "selection": int(self.selection),
            "failure probability": self.failure_probability,
            "wanted radius": self.radius,
            "give up": self.give_up,
            "precision": self.sampler.precision,
            "compiled": self.sampler.compiled,
            "seed": self.sampler.seed,
        }

    @property
    def _bound(self) -> str:
        if self.radius is not None:
            return "betting"
        return self.bound or ("clopper-pearson" if self.sampler.hard else "betting")

    @property
    def _runner_up(self) -> str:
        if self.runner_up is not None:
            return self.runner_up
        return "complement" if self.sampler.hard or self.radius is not None else "split"

    def certify(self, images: Tensor, index: Tensor, tell: Tell = nothing) -> dict[str, np.ndarray]:
        """See `Method`."""
        chosen = self._choose(images, index)
        others = chosen.argsort(descending=True, stable=True)
        classes = others if self._runner_up == "split" else others[:, :1]
        tally = Tally(classes, chosen.shape[1], self.sampler.values)
        if self.radius is None:
            everything = torch.arange(len(images), device=images.device)
            self._sample(tally, images, index, everything, 0, self.samples, tell)
            top_doubt, runner_up = self._bounds(tally)
        else:
            top_doubt = runner_up = self._decide(tally, images, index, tell)
        # A radius that is out of reach takes no samples but those that chose the class.
        mean = np.where(tally.samples()[:, None] > 0, tally.mean(), chosen.cpu().numpy() / self.selection)
        two = -np.sort(-mean, axis=1)[:, :2]
        return {
            "robust_class": classes[:, 0].cpu().numpy(),
            "lower": 1 - top_doubt,
            "upper": runner_up,
            "radius": self._radius(1 - top_doubt, runner_up),
            "estimate": self._radius(two[:, 0], two[:, 1]),
            "samples": tally.samples() + self.selection,
            "probabilities": mean.astype(np.float32),
        }

    def _choose(self, images: Tensor, index: Tensor) -> Tensor:
        """[N, C] sums of probabilities over samples of their own: the guarantee is about a class that was given."""
        sums: Tensor | None = None
        for rows, answers in self.sampler.draw(images, index, "selection", 0, self.selection):
            if sums is None:
                sums = torch.zeros(len(images), answers.shape[1], dtype=torch.float64, device=images.device)
            sums.index_add_(0, rows, answers.double())
        assert sums is not None  # there is at least one sample of at least one image
        return sums

    def _sample(
        self, tally: Tally, images: Tensor, index: Tensor, which: Tensor, first: int, last: int, tell: Tell = nothing
    ) -> None:
        done, total = 0, len(which) * (last - first)
        for rows, answers in self.sampler.draw(images[which], index[which], "estimation", first, last):
            tally.add(which[rows], answers)
            done += len(rows)
            tell(done / total)

    def _bounds(self, tally: Tally) -> tuple[np.ndarray, np.ndarray]:
        """Of the doubt about h's class, and of the probability of the class after it."""
        asked = tally.classes.shape[1]
        shares = [self._upper(tally.counts(each), self.failure_probability / asked) for each in range(asked)]
        runner_up = np.minimum(np.max(shares[1:], axis=0), shares[0]) if asked > 1 else shares[0]
        return shares[0], runner_up

    def _upper(self, counts: np.ndarray, failure_probability: float) -> np.ndarray:
        values, samples = self.sampler.values, self.samples
        if self._bound == "clopper-pearson":
            return bounds.clopper_pearson(counts[:, -1], samples, failure_probability)
        if self._bound == "betting":
            return Betting().upper(counts, failure_probability, values)
        mean = counts @ values / samples
        if self._bound == "chernoff":
            return bounds.chernoff(mean, samples, failure_probability)
        variance = (counts @ values**2 - samples * mean**2) / max(samples - 1, 1)
        return bounds.empirical_bernstein(mean, np.maximum(variance, 0), samples, failure_probability)

    def _decide(self, tally: Tally, images: Tensor, index: Tensor, tell: Tell) -> np.ndarray:
        """Sample every image until its wanted radius is certain or unlikely; returns bounds on the doubts, which hold
        whenever one stops."""
        allowed, values = self._allowed_doubt(), self.sampler.values
        active, done = torch.arange(len(images), device=images.device), 0
        decided = np.zeros(len(images), dtype=bool)
        while len(active) and done < self.samples and allowed > 0:
            # To look after a quarter more samples costs a few percent over looking after each.
            following = min(self.samples, done + max(BLOCK, done // 4))
            self._sample(tally, images, index, active, done, following)
            done = following
            which = active.cpu().numpy()
            counts = tally.counts()[which]
            certain = Betting().log_capital(counts, allowed, values) >= -np.log(self.failure_probability)
            unlikely = Betting().log_capital_above(counts, allowed, values) >= -np.log(self.give_up)
            decided[which] = certain
            active = active[torch.from_numpy(~(certain | unlikely)).to(active.device)]
            tell(1 - len(active) / len(images))
        bound = Betting().upper(tally.counts(), self.failure_probability, values)
        # A bound is known to four digits, a decision to all.
        return np.where(decided, np.minimum(bound, allowed), bound)

    def _allowed_doubt(self) -> float:
        """The largest doubt with which h's class has the wanted radius; 0 where none is small enough."""
        low, high = 0.0, 0.5
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self._radius(np.array(1 - middle), np.array(middle)) >= self.radius
            low, high = (middle, high) if enough else (low, middle)
        return low

    def _radius(self, top: np.ndarray, runner_up: np.ndarray) -> np.ndarray:
        return THEOREMS[self.theorem](top, np.minimum(runner_up, 1), self.sampler.sigma, self.alpha)
