"""Checks of the images that an attack returns: their form, and whether they are inside the threat model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import inside_threat
from adaptive_smoothing.attacks.cascade import PlainAttack, call_attack
from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION
from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.models.contract import check_image_values
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.threat import NORMS, Threat, column


class AttackedImages(NamedTuple):
    """The attacked images: predictions, which are outside the threat model or easier, and distances.

    An image outside the threat model does not count: `images` has the clean one in its place. There is one distance for
    each of `NORMS`.
    """

    images: Tensor
    predictions: Tensor
    outside: Tensor
    easier: Tensor
    distances: Tensor

    @classmethod
    def without_attack(cls, images: Tensor, predictions: Tensor) -> AttackedImages:
        """Return images that were not moved."""
        no = torch.zeros_like(predictions, dtype=torch.bool)
        return cls(images, predictions, no, no, no[:, None].expand(-1, len(NORMS)).float())

    @classmethod
    def cat(cls, parts: list[AttackedImages]) -> AttackedImages:
        """Return the images of several batches as one."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def replaced(self, rows: Tensor, other: AttackedImages) -> AttackedImages:
        """Return the images with `other` at the positions `rows`."""
        return AttackedImages(*(old.index_copy(0, rows, new) for old, new in zip(self, other, strict=True)))

    def cpu(self) -> AttackedImages:
        return AttackedImages(*(values.cpu() for values in self))


def is_easier(attacked: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
    """Return for which images the attack increased the lead of the correct class, given logits after and before it."""
    gained = logit_margin(clean, labels) - logit_margin(attacked, labels)
    return gained > FULL_PRECISION.rounding(clean)  # the same image in another batch is not easier


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
    distances = torch.stack([kind(0.0).distance(adversarial, images) for kind in NORMS.values()], 1)
    counted = torch.where(column(outside, images), images, adversarial)
    after = _logits(model, counted)
    predictions = after.argmax(1).where(~outside, labels)
    return AttackedImages(counted, predictions, outside, is_easier(after, logits, labels), distances)


def _logits(model: nn.Module, adversarial: Tensor) -> Tensor:
    try:
        check_image_values(adversarial)
    except ValueError as error:
        found = str(error).partition(":")[0]
        hint = "clamp them to [0, 1], or pass threat= to leave out and count the images that are outside"
        raise ValueError(f"the attack left the range of images: {found}: {hint}") from error
    return fp32_logits(model, adversarial)
