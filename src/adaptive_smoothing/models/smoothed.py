"""Randomized smoothing (Cohen et al. 2019) with fixed noise, for attacks and mixing; `certification` draws its own."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adaptive_smoothing.models import contract
from adaptive_smoothing.noise import generator
from adaptive_smoothing.settings.checks import as_number, check_count


class SmoothedClassifier(nn.Module):
    """A classifier whose logits are the log of the mean softmax of `base` under Gaussian noise.

    It is deterministic: `seed` fixes the noise, which is the same for every image, batch and device.

    Args:
        base: classifier that is averaged.
        sigma: standard deviation of the noise.
        samples: draws of the noise.
        seed: seed of the noise.
        hard: average votes for the predicted class instead of softmax; the gradient is zero.
        batch: approximate number of noisy images per pass of `base`. Gradients recompute each pass, so that memory does
            not grow with `samples`.

    Examples:
        >>> smooth = ads.SmoothedClassifier(h, sigma=0.25, samples=10)
        >>> torch.allclose(smooth(images).exp().sum(1), torch.ones(4))  # logits are logarithms of probabilities
        True
    """

    # The noise is computed from the arguments.
    NOT_IN_DIGEST: ClassVar = frozenset({"_noise"})
    log_probabilities_known: ClassVar = True  # the log of the mean softmax

    def __init__(
        self, base: nn.Module, sigma: float, samples: int = 100, seed: int = 0, *, hard: bool = False, batch: int = 512
    ) -> None:
        super().__init__()
        sigma = as_number("sigma", sigma)
        if not (sigma >= 0 and math.isfinite(sigma)):
            raise ValueError(f"expected sigma >= 0, got {sigma}: for images in [0, 1] try 0.25, 0.5 or 1")
        check_count(samples=samples, batch=batch)
        contract.check_eval(base)
        self.base, self.sigma, self.samples, self.seed = base, sigma, samples, seed
        self.hard, self.batch = hard, batch
        self._noise: tuple[object, Tensor] | None = None

    @property
    def num_classes(self) -> int | None:
        """The number of classes that `base` declares, or None."""
        return getattr(self.base, "num_classes", None)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}, samples={self.samples}, seed={self.seed}, hard={self.hard}"

    def forward(self, images: Tensor) -> Tensor:
        contract.guard_images(images)
        return self.logits(images)

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits without checking the values of the images."""
        noise = self._draws(images).split(max(1, self.batch // max(1, images.shape[0])))
        if self.hard:
            return contract.with_zero_gradient(self._votes(images, noise), images)
        return self._mean(images, noise)

    def _mean(self, images: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        """Return the log of the mean softmax, summed in the log domain, where a probability of 1e-40 has a gradient."""
        chunk = self._chunk
        # torch.func transforms do not allow the saved-tensor hooks of checkpoints.
        if len(noise) > 1 and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():
            chunk = partial(checkpoint, self._chunk, use_reentrant=False, preserve_rng_state=False)
        parts = (chunk(images, draws) for draws in noise)
        return reduce(torch.logaddexp, parts) - math.log(self.samples)

    def _chunk(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the log of the sum of softmax over these draws, one row per image."""
        return self._base_logits(images, draws).log_softmax(-1).logsumexp(0)

    @torch.no_grad()
    def _votes(self, images: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        """Return the log of the share of votes."""
        logits = (self._base_logits(images, draws) for draws in noise)
        share = sum(F.one_hot(part.argmax(-1), part.shape[-1]).sum(0) for part in logits) / self.samples
        assert isinstance(share, Tensor)  # there is at least one sample
        # Without a lower limit, a class without votes would have the logit -inf, and a loss a NaN gradient.
        return share.clamp_min(torch.finfo(share.dtype).tiny).log()

    def _base_logits(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return logits (draws, images, classes). Noisy images are not clipped: the theory needs Gaussian noise."""
        noisy = (images.unsqueeze(0) + self.sigma * draws.unsqueeze(1)).flatten(0, 1)
        with contract.trusted_images():
            logits = self.base(noisy)
        contract.check_logit_form(logits, noisy)
        # Sums of a hundred softmax values need more than half precision.
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return precise.unflatten(0, (draws.shape[0], images.shape[0]))

    def _draws(self, images: Tensor) -> Tensor:
        """Return standard normal numbers (samples, C, H, W), cached because an attack needs them at every step."""
        key = (self.seed, self.samples, tuple(images.shape[1:]), images.device, images.dtype)
        if self._noise is None or self._noise[0] != key:
            # Used as a decorator, `disable` would import torch._dynamo (1.5 s) even if nothing is compiled.
            draw = torch.compiler.disable(_draw) if torch.compiler.is_compiling() else _draw
            self._noise = (key, draw(self.seed, self.samples, images))
        return self._noise[1]


def _draw(seed: int, samples: int, images: Tensor) -> Tensor:
    """Return normal numbers, drawn on the CPU so that all devices use the same.

    They are drawn outside of vmap and inference mode, because later calls use them again.
    """
    with torch._C._DisableFuncTorch(), torch.inference_mode(False):
        draws = torch.randn(samples, *images.shape[1:], generator=generator(seed, "smoothing"))
        return draws.to(images.device, images.dtype)
