"""Local Lipschitz constants of the probabilities of h, estimated by PGD. This is an estimate, not a certificate.

thm:certified_radius needs how far the probability of the predicted class can fall, and how far any other can rise:

    L_y = max (h_y(x) - h_y(x + delta)) / eps,    L_i = max (h_i(x + delta) - h_i(x)) / eps,

where each class has a perturbation of its own, and each constant is at least 0. The signs of eq:est_lipschitz in the
paper are opposite and contradict its text; this module follows the text. The paper reports the mean over the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import Model
from adaptive_smoothing.attacks.pgd import Active, ascend
from adaptive_smoothing.certification import radius
from adaptive_smoothing.certification.sampling import BATCH
from adaptive_smoothing.models.contract import frozen, trusted_images
from adaptive_smoothing.models.inference import fp32_logits_chunked, full_precision
from adaptive_smoothing.runs.journal import Columns
from adaptive_smoothing.runs.progress import ProgressCallback, ignore_progress
from adaptive_smoothing.threat import Threat


@dataclass(frozen=True, kw_only=True)
class LocalEstimate:
    """Estimator of the local Lipschitz constants of h in the ball of a threat, and of whether h has its radius.

    Args:
        scale: factor of the logits of h in the mixture.
    """

    name: ClassVar[str] = "local"

    robust: nn.Module
    threat: Threat
    alpha: float = 1.0
    scale: float = 1.0
    steps: int = 20
    batch_size: int | None = None

    def __post_init__(self) -> None:
        radius.check_alpha(self.alpha)

    @property
    def norm(self) -> str:
        return self.threat.norm

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"method": self.name, "eps": float(self.threat.eps), "steps": self.steps}
        return {**settings, "failure probability": None, "precision": "float32"}

    def certify(self, images: Tensor, index: Tensor, progress: ProgressCallback = ignore_progress) -> Columns:
        """Return the columns that `certify.Certifier` lists, with every radius 0, and `constants` [N, C]."""
        eps = float(self.threat.eps)
        probabilities = (self.scale * fp32_logits_chunked(self.robust, images).double()).softmax(1).cpu().numpy()
        classes, predicted = probabilities.shape[1], probabilities.argmax(1)
        size = max(1, (self.batch_size or BATCH["cuda" if images.is_cuda else "cpu"]) // classes)
        parts = zip(images.split(size), torch.from_numpy(predicted).to(images.device).split(size), strict=True)
        constants = torch.cat([self._largest_changes(*part, classes) for part in parts]).cpu().numpy() / eps
        ranked = -np.sort(-probabilities, axis=1)
        return {
            "robust_class": predicted,
            "lower": ranked[:, 0],
            "upper": ranked[:, 1],
            "radius": np.zeros(len(images)),
            "estimate": estimated_radius(probabilities, constants, eps, self.alpha),
            "samples": np.full(len(images), classes * (self.steps + 1)),
            "probabilities": probabilities.astype(np.float32),
            "constants": constants,
        }

    def _largest_changes(self, images: Tensor, predicted: Tensor, classes: int) -> Tensor:
        """Return [N, C]: how far PGD lowers the probability of the predicted class and raises that of every other."""
        start = images.repeat_interleave(classes, 0)
        which = torch.arange(classes, device=images.device).repeat(len(images))
        sign = torch.where(which == predicted.repeat_interleave(classes), -1.0, 1.0)
        with frozen(self.robust), full_precision():
            clean = self._probability(start, which)
            best = torch.zeros_like(clean)

            def change(model: Model, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
                probability = self._probability(points, labels)
                return sign * (probability - clean), probability

            def keep_largest(active: Active, points: Tensor, change: Tensor, probability: Tensor) -> None:
                torch.maximum(best, change, out=best)

            ascend(change, self.robust, start, which, self.threat, self.steps, start, observe=keep_largest)
        return best.double().unflatten(0, (len(images), classes))

    def _probability(self, images: Tensor, which: Tensor) -> Tensor:
        """Return the probability of one class for each image."""
        with trusted_images():
            logits = self.robust(images)
        return (self.scale * logits.float()).softmax(1).gather(1, which[:, None]).squeeze(1)


def estimated_radius(probabilities: np.ndarray, constants: np.ndarray, eps: float, alpha: float) -> np.ndarray:
    """Return eps where the radius of thm:certified_radius with these constants is at least eps, and 0 elsewhere."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked, each = (np.take_along_axis(array.astype(np.float64), order, 1) for array in (probabilities, constants))
    # The theorem needs constants above 0.
    each = np.maximum(each, 1e-12)
    reach = radius.lipschitz_radius(ranked[:, 0], ranked[:, 1:], each[:, 0], each[:, 1:], alpha)
    return np.where(reach >= eps, eps, 0.0)
