"""Locally biased smoothing of a binary classifier, eq. lbrs, the method that adaptive smoothing generalises.

Anderson and Sojoudi, "Certified robustness via locally biased randomized smoothing". `NearestNeighbors` is a direction
oracle for `LocallyBiasedSmoothing`.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.gradient_mixture import check_gamma, norm_of, value_and_gradient
from adaptive_smoothing.models.contract import check_eval, check_image_form, check_logit_form, guard_images
from adaptive_smoothing.threat import Linf, Threat


class LocallyBiasedSmoothing(nn.Module):
    """h^gamma(x) = g(x) + gamma h(x) ||grad g(x)||_{p*}, eq. lbrs, where g is logit 1 - logit 0 of `standard`.

    `oracle` returns the direction h(x): -1 for class 0, +1 for class 1. Gradients include that of the gradient norm.
    `train()` leaves `standard` in eval mode.

    Args:
        standard: a classifier with two classes.
        oracle: a module from images to directions.
        gamma: the weight of the direction, at least 0.
        norm: the threat whose dual norm measures gradients.

    Examples:
        >>> from adaptive_smoothing.mixing.locally_biased import NearestNeighbors
        >>> binary = ads.wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2)))
        >>> oracle = NearestNeighbors(images, torch.tensor([0, 1, 0, 1]))
        >>> biased = ads.LocallyBiasedSmoothing(binary, oracle, gamma=100.0)
        >>> biased(images).argmax(1)  # a large gamma follows the oracle
        tensor([0, 1, 0, 1])
    """

    gamma: Tensor

    def __init__(
        self, standard: nn.Module, oracle: nn.Module, gamma: float, *, norm: type[Threat] | Threat = Linf
    ) -> None:
        super().__init__()
        check_eval(standard)
        self.standard, self.oracle = standard, oracle
        self.register_buffer("gamma", torch.as_tensor(gamma, dtype=torch.get_default_dtype()))
        check_gamma(self.gamma)
        self.norm = norm_of(norm)
        self.training = False

    def score(self, images: Tensor) -> Tensor:
        """Return h^gamma(x), which is positive for class 1."""
        guard_images(images)
        g, gradient = value_and_gradient(self._standard_score, images)
        direction = self.oracle(images)
        if direction.shape != g.shape:
            raise ValueError(f"expected one direction per image from the oracle, got {list(direction.shape)}")
        return g + self.gamma * direction * self.norm(0.0).dual_norm(gradient)

    def forward(self, images: Tensor) -> Tensor:
        """Return two logits whose difference is the score, as any binary classifier does."""
        score = self.score(images)
        return torch.stack([-score / 2, score / 2], dim=1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.standard.eval()
        return self

    def _standard_score(self, images: Tensor) -> Tensor:
        logits = self.standard(images)
        check_logit_form(logits, images)
        if logits.shape[1] != 2:
            hint = "for more classes use GradientMixedClassifier"
            raise ValueError(f"expected a binary classifier with 2 logits, got {logits.shape[1]}; {hint}")
        return logits[:, 1] - logits[:, 0]


class NearestNeighbors(nn.Module):
    """A direction oracle h(x): -1 if most of the `k` nearest known images have label 0, +1 if most have label 1.

    Args:
        images, labels: the known images, and their labels 0 or 1.
        norm: the p of the p-norm that measures distances between images.
        images_at_once: images whose distances to all known images are in memory at the same time.
    """

    images: Tensor
    directions: Tensor

    def __init__(
        self, images: Tensor, labels: Tensor, k: int = 1, norm: float = 2, *, images_at_once: int = 256
    ) -> None:
        super().__init__()
        check_image_form(images)
        if k % 2 == 0 or not 1 <= k <= len(images):
            raise ValueError(f"expected an odd k from 1 to {len(images)}, the number of images, got {k}")
        if labels.shape != images.shape[:1] or not ((labels == 0) | (labels == 1)).all():
            found = f"shape {list(labels.shape)} with values {labels.unique().tolist()}; this oracle is for two classes"
            raise ValueError(f"expected a label 0 or 1 for each of {len(images)} images, got {found}")
        self.register_buffer("images", images)
        self.register_buffer("directions", (2 * labels - 1).to(images))
        self.k, self.norm, self.images_at_once = k, float(norm), images_at_once
        self.training = False

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        # The matrix-product shortcut for Euclidean distances cancels badly between near duplicates.
        exact, known, nearest = "donot_use_mm_for_euclid_dist", self.images.flatten(1), []
        for batch in images.flatten(1).split(self.images_at_once):
            distances = torch.cdist(batch, known, p=self.norm, compute_mode=exact)
            nearest.append(distances.topk(self.k, largest=False).indices)
        return self.directions[torch.cat(nearest)].sum(1).sign()
