"""Checks of the images that an attack returns: their form, and whether they are inside the threat model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import inside_threat
from adaptive_smoothing.attacks.cascade import PlainAttack, call_attack
from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.models.contract import check_image_values
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.threat import NORMS, Threat


class AttackedImages(NamedTuple):
    """For each attacked image: the prediction, whether it does not count or is easier, and its distances by norm.

    An image does not count if it is outside the threat model. It is easier if the correct class leads by more than
    without the attack.
    """

    predictions: Tensor
    outside: Tensor
    easier: Tensor
    distances: dict[str, Tensor]

    @classmethod
    def without_attack(cls, predictions: Tensor) -> AttackedImages:
        """Return images that were not moved."""
        zeros = torch.zeros(len(predictions), device=predictions.device)
        return cls(predictions, zeros.bool(), zeros.bool(), dict.fromkeys(NORMS, zeros))

    @classmethod
    def cat(cls, parts: list[AttackedImages]) -> AttackedImages:
        """Return the images of several batches as one."""
        predictions, outside, easier, distances = zip(*parts, strict=True)
        by_norm = {norm: torch.cat([each[norm] for each in distances]) for norm in NORMS}
        return cls(torch.cat(predictions), torch.cat(outside), torch.cat(easier), by_norm)

    def replaced(self, rows: Tensor, other: AttackedImages) -> AttackedImages:
        """Return the images with `other` at the positions `rows`."""
        return self._each(lambda column, new: column.index_copy(0, rows, new), other)

    def cpu(self) -> AttackedImages:
        return self._each(lambda column, _: column.cpu(), self)

    def _each(self, change: Callable[[Tensor, Tensor], Tensor], other: AttackedImages) -> AttackedImages:
        """Return every column after a change that may use the same column of `other`."""
        return AttackedImages(
            change(self.predictions, other.predictions),
            change(self.outside, other.outside),
            change(self.easier, other.easier),
            {norm: change(column, other.distances[norm]) for norm, column in self.distances.items()},
        )


def own_threat(attack: object) -> Threat | None:
    """Return the threat of an attack that has one, such as PGD."""
    threat = getattr(attack, "threat", None)
    return threat if isinstance(threat, Threat) else None


def attack_images(
    model: nn.Module, images: Tensor, labels: Tensor, logits: Tensor, attack: PlainAttack, threat: Threat | None
) -> AttackedImages:
    """Run an attack on images that are classified correctly, and check every image that it returns.

    An image outside the threat model proves nothing: its prediction is the correct one, as without an attack. Without a
    threat, an image that leaves [0, 1] is an error.

    Args:
        logits: of the images before the attack.
    """
    adversarial = call_attack(attack, model, images, labels)
    outside = torch.zeros_like(labels, dtype=torch.bool)
    if threat is not None:
        outside = ~inside_threat(adversarial, images, threat)
    distances = {norm: kind(0.0).distance(adversarial, images) for norm, kind in NORMS.items()}
    counted = torch.where(outside.view(-1, 1, 1, 1), images, adversarial)
    after = _logits(model, counted)
    easier = (logit_margin(after, labels) < logit_margin(logits, labels)) & ~outside
    return AttackedImages(after.argmax(1).where(~outside, labels), outside, easier, distances)


def _logits(model: nn.Module, adversarial: Tensor) -> Tensor:
    try:
        check_image_values(adversarial)
    except ValueError as error:
        found = str(error).partition(":")[0]
        hint = "clamp them to [0, 1], or pass threat= to leave out and count the images that are outside"
        raise ValueError(f"the attack left the range of images: {found}: {hint}") from error
    return fp32_logits(model, adversarial)
