"""Randomized smoothing (Cohen et al., 2019): the average of a classifier's answers under Gaussian noise.

This is the classifier that one trains, attacks and mixes. Radii with a guarantee come from `certification`,
which draws fresh noise for each image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adaptive_smoothing.models.contract import (
    check_eval,
    check_logit_form,
    guard_images,
    trusted_images,
    with_zero_gradient,
)
from adaptive_smoothing.noise import generator


class SmoothedClassifier(nn.Module):
    """Images -> log of the mean, over `samples` draws of N(0, sigma^2), of `base`'s softmax or of its votes.

    The draws are fixed by `seed`, the same for every image, batch and device, so that this is an ordinary
    deterministic classifier. `hard` counts votes for the top class instead of averaging softmax; its
    gradient is zero. About `batch` noisy images go through `base` at once; gradients recompute each such chunk
    instead of keeping it, so that memory does not grow with `samples`.
    """

    # What the settings make anew: no part of what this classifier is.
    ONLY_KEPT = frozenset({"_bank"})

    def __init__(
        self,
        base: nn.Module,
        sigma: float,
        samples: int = 100,
        seed: int = 0,
        *,
        hard: bool = False,
        batch: int = 512,
    ) -> None:
        super().__init__()
        if not (sigma >= 0 and math.isfinite(sigma)):
            raise ValueError(f"expected sigma >= 0, got {sigma}; for images in [0, 1] try 0.25, 0.5 or 1")
        if samples < 1 or batch < 1:
            raise ValueError(f"expected samples and batch of at least 1, got {samples} and {batch}")
        check_eval(base)
        self.base = base
        self.sigma = sigma
        self.samples = samples
        self.seed = seed
        self.hard = hard
        self.batch = batch
        self._bank: tuple[object, Tensor] | None = None

    @property
    def num_classes(self) -> int | None:
        return getattr(self.base, "num_classes", None)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}, samples={self.samples}, seed={self.seed}, hard={self.hard}"

    def forward(self, images: Tensor) -> Tensor:
        guard_images(images)
        return self.logits(images)

    def logits(self, images: Tensor) -> Tensor:
        """The same without the guard on the values of images."""
        noise = self._noise(images).split(max(1, self.batch // max(1, images.shape[0])))
        if self.hard:
            return with_zero_gradient(self._votes(images, noise), images)
        return self._mean(images, noise)

    def _mean(self, images: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        """log mean softmax, summed in the log domain, where a probability of 1e-40 keeps its gradient."""
        recompute = len(noise) > 1 and torch.is_grad_enabled() and _checkpoints_work()
        total: Tensor | None = None
        for draws in noise:
            if recompute:
                part = checkpoint(self._chunk, images, draws, use_reentrant=False, preserve_rng_state=False)
            else:
                part = self._chunk(images, draws)
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None  # there is at least one sample, hence one chunk
        return total - math.log(self.samples)

    def _chunk(self, images: Tensor, draws: Tensor) -> Tensor:
        """log of the sum of softmax over these draws, one row per image."""
        return self._base_logits(images, draws).log_softmax(-1).logsumexp(0)

    @torch.no_grad()
    def _votes(self, images: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        votes: Tensor | None = None
        for draws in noise:
            logits = self._base_logits(images, draws)
            part = nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0)
            votes = part if votes is None else votes + part
        assert votes is not None
        share = votes / self.samples
        # A class without votes would have the logit -inf, and the next loss a NaN gradient.
        return share.clamp_min(torch.finfo(share.dtype).tiny).log()

    def _base_logits(self, images: Tensor, draws: Tensor) -> Tensor:
        """(draws, images, classes). Noisy images leave [0, 1], and clipping them would void the theory."""
        noisy = (images.unsqueeze(0) + self.sigma * draws.unsqueeze(1)).flatten(0, 1)
        with trusted_images():
            logits = self.base(noisy)
        check_logit_form(logits, noisy)
        # Sums of a hundred softmax values need more digits than half precision has.
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return precise.unflatten(0, (draws.shape[0], images.shape[0]))

    def _noise(self, images: Tensor) -> Tensor:
        """(samples, C, H, W) standard normal numbers, kept because an attack asks for them at every step."""
        key = (self.seed, self.samples, tuple(images.shape[1:]), images.device, images.dtype)
        if self._bank is None or self._bank[0] != key:
            # A decorator would do the same, and import torch._dynamo (1.5 s) for those who never compile.
            draw = torch.compiler.disable(_draw) if torch.compiler.is_compiling() else _draw
            self._bank = (key, draw(self.seed, self.samples, images))
        return self._bank[1]


def _draw(seed: int, samples: int, images: Tensor) -> Tensor:
    """On the CPU, so that every device smooths alike; outside of vmap and inference mode, so that the numbers
    can be kept for calls of any kind.
    """
    with torch._C._DisableFuncTorch(), torch.inference_mode(False):
        draws = torch.randn(samples, *images.shape[1:], generator=generator(seed, "smoothing"))
        return draws.to(images.device, images.dtype)


def _checkpoints_work() -> bool:
    """torch.func transforms do not allow the saved-tensor hooks that checkpoints are made of."""
    return not torch._C._are_functorch_transforms_active()
