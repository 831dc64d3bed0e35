"""How fast probabilities change near an image, as far as PGD can tell: an estimate, and no certificate.

eq. est_lipschitz of the paper adds a rise of the predicted class and subtracts the rises of the others, where its text
asks for what thm:certified_radius needs: how far the predicted class can fall and how far any other can rise. Here all
of them count as they hurt, L_y = max (h_y(x) - h_y(x + delta)) / eps and L_i = max (h_i(x + delta) - h_i(x)) / eps,
each class with a perturbation of its own, each at least 0. The estimate of the paper is their mean over the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.pgd import Active, Model, ascend
from adaptive_smoothing.certification import radius
from adaptive_smoothing.certification.telling import Tell, nothing
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision
from adaptive_smoothing.runs.sharded import check_size
from adaptive_smoothing.threat import Threat


@dataclass(frozen=True, kw_only=True)
class LocalEstimate:
    """Estimated local constants of h, per class and one-sided, and whether they let a mixture stand at radius eps.

    The constants are about the whole ball, so the radius they give is one of two: eps, if thm:certified_radius reaches
    it, or none.
    """

    robust: nn.Module
    threat: Threat
    alpha: float = 1.0
    scale: float = 1.0
    steps: int = 20
    batch_size: int | None = None

    def __post_init__(self) -> None:
        radius.needed_margin(self.alpha)
        check_size("batch_size", self.batch_size)
        if self.steps < 1:
            raise ValueError(f"expected at least 1 step, got {self.steps}")
        if not float(self.threat.eps) > 0:
            raise ValueError("expected eps above 0 for a slope, got 0: 8/255 is usual in Linf")

    @property
    def name(self) -> str:
        return "local"

    @property
    def norm(self) -> str:
        return self.threat.norm

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "eps": float(self.threat.eps),
            "steps": self.steps,
            "failure probability": None,
            "precision": "float32",
        }

    def certify(self, images: Tensor, index: Tensor, tell: Tell = nothing) -> dict[str, np.ndarray]:
        """See `Method`: nothing is certified; the column `constants` is [N, C]."""
        eps = float(self.threat.eps)
        probabilities = (self.scale * fp32_logits_chunked(self.robust, images).double()).softmax(1).cpu().numpy()
        constants = self.largest_changes(images, probabilities.argmax(1)) / eps
        ranked = -np.sort(-probabilities, axis=1)
        return {
            "robust_class": probabilities.argmax(1),
            "lower": ranked[:, 0],
            "upper": ranked[:, 1],
            "radius": np.zeros(len(images)),
            "estimate": estimated_radius(probabilities, constants, eps, self.alpha),
            "samples": np.full(len(images), probabilities.shape[1] * (self.steps + 1)),
            "probabilities": probabilities.astype(np.float32),
            "constants": constants,
        }

    def largest_changes(self, images: Tensor, predicted: np.ndarray) -> np.ndarray:
        """[N, C]: how far the predicted class falls and every other rises inside the ball, as far as PGD finds."""
        size = self.batch_size or (4096 if images.is_cuda else 128)
        classes = self._num_classes(images)
        found = [
            self._climb(part, of.repeat_interleave(classes), classes)
            for part, of in zip(
                images.split(max(1, size // classes)),
                torch.from_numpy(predicted).to(images.device).split(max(1, size // classes)),
                strict=True,
            )
        ]
        return torch.cat(found).cpu().numpy()

    def _num_classes(self, images: Tensor) -> int:
        return fp32_logits_chunked(self.robust, images[:1]).shape[1]

    def _climb(self, images: Tensor, predicted: Tensor, classes: int) -> Tensor:
        """Every image with every class at once: the paper's PGD, from the image itself."""
        start = images.repeat_interleave(classes, 0)
        which = torch.arange(classes, device=images.device).repeat(len(images))
        sign = torch.where(which == predicted, -1.0, 1.0)
        with frozen(self.robust), full_precision():
            clean = self._chosen(start, which)
            best = torch.zeros_like(clean)

            def change(model: Model, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
                probability = self._chosen(points, labels)
                return sign * (probability - clean), probability

            def keep_largest(active: Active, points: Tensor, change: Tensor, probability: Tensor) -> None:
                torch.maximum(best, change, out=best)

            ascend(change, self.robust, start, which, self.threat, self.steps, start, observe=keep_largest)
        return best.double().unflatten(0, (len(images), classes))

    def _chosen(self, images: Tensor, which: Tensor) -> Tensor:
        """The probability of one class for each image."""
        with trusted_images():
            logits = self.robust(images)
        return (self.scale * logits.float()).softmax(1).gather(1, which[:, None]).squeeze(1)


def estimated_radius(probabilities: np.ndarray, constants: np.ndarray, eps: float, alpha: float) -> np.ndarray:
    """eps, where thm:certified_radius with these constants reaches it, and 0 elsewhere."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked, each = (np.take_along_axis(array.astype(np.float64), order, 1) for array in (probabilities, constants))
    # A class that does not move at all still has a constant above 0.
    each = np.maximum(each, 1e-12)
    reach = radius.lipschitz_radius(ranked[:, 0], ranked[:, 1:], each[:, 0], each[:, 1:], alpha)
    return np.where(reach >= eps, eps, 0.0)
