"""Checks of the images that an attack returns: their form, and whether they are inside the threat model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import check_returned, inside_threat
from adaptive_smoothing.attacks.cascade import PlainAttack
from adaptive_smoothing.models.contract import check_eval, check_image_values
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.threat import NORMS, Threat


class AttackedImages(NamedTuple):
    """For each attacked image: the prediction, whether it is outside the threat model, and its distances by norm."""

    predictions: Tensor
    outside: Tensor
    distances: dict[str, Tensor]

    @classmethod
    def without_attack(cls, predictions: Tensor) -> AttackedImages:
        """Return images that were not moved."""
        zeros = torch.zeros(len(predictions), device=predictions.device)
        return cls(predictions, zeros.bool(), dict.fromkeys(NORMS, zeros))

    @classmethod
    def cat(cls, parts: list[AttackedImages]) -> AttackedImages:
        """Return the images of several batches as one."""
        predictions, outside, distances = zip(*parts, strict=True)
        by_norm = {norm: torch.cat([each[norm] for each in distances]) for norm in NORMS}
        return cls(torch.cat(predictions), torch.cat(outside), by_norm)

    def replaced(self, rows: Tensor, other: AttackedImages) -> AttackedImages:
        """Return the images with `other` at the positions `rows`."""
        columns = {norm: column.index_copy(0, rows, other.distances[norm]) for norm, column in self.distances.items()}
        predictions = self.predictions.index_copy(0, rows, other.predictions)
        return AttackedImages(predictions, self.outside.index_copy(0, rows, other.outside), columns)

    def cpu(self) -> AttackedImages:
        distances = {norm: column.cpu() for norm, column in self.distances.items()}
        return AttackedImages(self.predictions.cpu(), self.outside.cpu(), distances)


def own_threat(attack: object) -> Threat | None:
    """Return the threat of an attack that has one, such as PGD."""
    threat = getattr(attack, "threat", None)
    return threat if isinstance(threat, Threat) else None


def attack_images(
    model: nn.Module, images: Tensor, labels: Tensor, attack: PlainAttack, threat: Threat | None
) -> AttackedImages:
    """Run an attack on images that are classified correctly, and check every image that it returns.

    An image outside the threat model proves nothing: its prediction is the correct one, as without an attack. Without a
    threat, an image that leaves [0, 1] is an error.
    """
    # A copy, because the attack may change its arguments in place.
    adversarial = check_returned(attack(model, images.clone(), labels.clone()), images)
    check_eval(model)
    outside = torch.zeros_like(labels, dtype=torch.bool)
    if threat is not None:
        outside = ~inside_threat(adversarial, images, threat)
    distances = {norm: kind(0.0).distance(adversarial, images) for norm, kind in NORMS.items()}
    counted = torch.where(outside.view(-1, 1, 1, 1), images, adversarial)
    return AttackedImages(_predictions(model, counted).where(~outside, labels), outside, distances)


def _predictions(model: nn.Module, adversarial: Tensor) -> Tensor:
    try:
        check_image_values(adversarial)
    except ValueError as error:
        found = str(error).partition(":")[0]
        hint = "clamp them to [0, 1], or pass threat= to leave out and count the images that are outside"
        raise ValueError(f"the attack left the range of images: {found}: {hint}") from error
    return fp32_logits(model, adversarial).argmax(1)
