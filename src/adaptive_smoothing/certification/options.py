"""Options of certification: one dataclass per method, passed from the command line to the certifier."""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_smoothing.certification.bounds import check_failure_probability, check_samples
from adaptive_smoothing.certification.radius import LIPSCHITZ_THEOREMS, SMOOTHING_THEOREMS
from adaptive_smoothing.certification.sampling import BLOCK, PRECISIONS
from adaptive_smoothing.runs.sharded import check_size
from adaptive_smoothing.settings.checks import check_choice, check_number, check_whole
from adaptive_smoothing.threat import NORMS

RUNNERS_UP = ("complement", "split")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every method.

    Args:
        norm: norm of the radii, L2 or Linf, in upper or lower case; default L2, or Linf for a local estimate. An L2
            certificate is converted to Linf: the cube inside its ball is certified.
        shard_size: images that are processed and journalled together; default 500, on a CPU 4.
    """

    norm: str | None = None
    shard_size: int | None = None

    def __post_init__(self) -> None:
        check_size("shard_size", self.shard_size)
        if self.norm is not None:
            norm = {name.lower(): name for name in NORMS}.get(self.norm.lower(), self.norm)
            check_choice("norm", norm, NORMS)
            object.__setattr__(self, "norm", norm)


@dataclass(frozen=True, kw_only=True)
class SmoothingOptions(RunOptions):
    """Options of randomized smoothing.

    Args:
        samples: largest number of noisy samples per image that bound the probabilities.
        selection: further samples per image that choose the class.
        failure_probability: largest probability that the certificate of an image is wrong.
        runner_up: "complement" bounds the runner-up by 1 - p of the class, which suits hard votes. "split" bounds every
            class with an equal part of the failure probability, which suits soft votes. None chooses by the votes.
        theorem: "margin" (ours), "paper" (thm:randomized_smoothing) or "lipschitz" (thm:certified_radius).
        radius: wanted radius: sampling of an image stops as soon as it is decided whether the image has this radius.
        give_up: with `radius`, largest probability of giving up on an image that has it.
        precision: arithmetic of the network; the certificate is about the network in this precision.
        compiled: compile the network, which saves time from about 2e7 samples on.
        seed: seed of the noise.
        batch_size: samples per batch; default 4,096, on a CPU 128.
    """

    samples: int = 10_000
    selection: int = BLOCK
    failure_probability: float = 0.001
    runner_up: str | None = None
    theorem: str = "margin"
    radius: float | None = None
    give_up: float = 0.01
    precision: str = "float32"
    compiled: bool = False
    seed: int = 0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_samples(self.samples)
        check_samples(self.selection)
        check_failure_probability(self.failure_probability)
        check_failure_probability(self.give_up)
        check_size("batch_size", self.batch_size)
        check_choice("theorem", self.theorem, SMOOTHING_THEOREMS)
        check_choice("precision", self.precision, PRECISIONS)
        if self.runner_up is not None:
            check_choice("runner_up", self.runner_up, RUNNERS_UP)
        if self.radius is not None:
            check_number(radius=self.radius)
        if self.radius is not None and not 0 < self.radius < float("inf"):
            raise ValueError(f"expected a wanted radius above 0, got {self.radius}: leave it out to find the largest")
        if self.radius is not None and self.runner_up == "split":
            hint = "which cannot stop early: leave one of the two out"
            raise ValueError(f"expected runner_up 'complement' with a wanted radius, got 'split', {hint}")


@dataclass(frozen=True, kw_only=True)
class LipschitzOptions(RunOptions):
    """Options of certification by a proven Lipschitz constant.

    Args:
        theorem: "margin" (ours) or "paper" (thm:certified_radius).
    """

    theorem: str = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("theorem", self.theorem, LIPSCHITZ_THEOREMS)


@dataclass(frozen=True, kw_only=True)
class LocalOptions(RunOptions):
    """Options of the local estimate, which certifies nothing.

    Args:
        eps: radius of the ball around each image, in `norm`.
        steps: steps of PGD.
        batch_size: images times classes per batch; default 4,096, on a CPU 128.
    """

    eps: float = 8 / 255
    steps: int = 20
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("batch_size", self.batch_size)
        check_whole(steps=self.steps)
        if self.steps < 1:
            raise ValueError(f"expected at least 1 step, got {self.steps}")
        if not self.eps > 0:
            raise ValueError(f"expected eps above 0, got {self.eps:g}: 8/255 is usual in Linf")


CertifyOptions = SmoothingOptions | LipschitzOptions | LocalOptions
METHODS: dict[str, type[CertifyOptions]] = {
    "smoothing": SmoothingOptions,
    "lipschitz": LipschitzOptions,
    "local": LocalOptions,
}


def make_options(method: str) -> CertifyOptions:
    """Return the default options of a method."""
    check_choice("method", method, METHODS)
    return METHODS[method]()
