"""What an attack gets, what it returns, and the confirmation of its successes in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.models.contract import SLACK, check_image_form
from adaptive_smoothing.models.inference import NotFiniteError, fp32_logits_chunked
from adaptive_smoothing.threat import Threat, threat_title

# How far outside the ball an image may be because of rounding. The error of one float32 pixel is absolute. That of an
# L2 norm is relative and grows with the number of pixels, to some millionths for an ImageNet image.
PIXEL_ROUNDING, NORM_ROUNDING = 1e-6, 1e-5
# Share of images outside the threat model from which a robust accuracy would mean nothing.
MOST = 0.5
# What to do about images outside the threat model.
OUTSIDE_HINT = "project them with threat.project(adversarial, images), or pass the threat that the attack uses"


@dataclass(frozen=True)
class AttackInput:
    """The images to attack, and what is known about them."""

    images: Tensor
    labels: Tensor
    index: Tensor  # positions in the data set, from which random numbers are derived
    logits: Tensor  # of the clean images, in full precision
    threat: Threat
    worst: Tensor | None = None  # the worst versions that earlier attacks have found

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def eps(self) -> Tensor:
        """One radius per image."""
        return torch.as_tensor(self.threat.eps, dtype=torch.float32, device=self.images.device).expand(len(self))

    def take(self, which: Tensor) -> AttackInput:
        """Return the input of a selection of the images."""
        images, labels, index, logits = (part[which] for part in (self.images, self.labels, self.index, self.logits))
        worst = None if self.worst is None else self.worst[which]
        return AttackInput(images, labels, index, logits, self.threat.take(which), worst)


@dataclass
class AttackOutcome:
    """The result of an attack for each image: whether it fools the model, its worst version, the queries made.

    The margin and the logits of a fooled image are those that confirmed it in full precision. For other images the
    margin is the one the attack computed, and the logits have no meaning.
    """

    fooled: Tensor
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor

    @classmethod
    def before(cls, inputs: AttackInput) -> AttackOutcome:
        """Return the outcome before the first query: no image is fooled, and every margin is -inf."""
        none_fooled, no_queries = torch.zeros_like(inputs.labels, dtype=torch.bool), torch.zeros_like(inputs.labels)
        low = torch.full_like(inputs.eps, -torch.inf)
        return cls(none_fooled, inputs.images.clone(), low, torch.zeros_like(inputs.logits), no_queries)


def confirm(
    model: nn.Module, adversarial: Tensor, images: Tensor, labels: Tensor, threat: Threat
) -> tuple[Tensor, Tensor]:
    """Return the margins and the logits in full precision; a margin is positive if the image fools the model.

    Outside the ball the margin is -inf.
    """
    if adversarial.isnan().any():
        raise NotFiniteError
    logits = fp32_logits_chunked(model, adversarial)
    margin = logit_margin(logits, labels)
    # Where the label ties with another class, the prediction may be the other one, although the margin is 0.
    margin = margin.where(logits.argmax(1) == labels, margin.clamp_min(torch.finfo(margin.dtype).tiny))
    return margin.where(inside_ball(adversarial, images, threat), -torch.inf), logits


def inside_ball(adversarial: Tensor, images: Tensor, threat: Threat) -> Tensor:
    """Return whether each perturbation has norm at most eps, up to rounding."""
    eps = torch.as_tensor(threat.eps, device=images.device)
    return threat.distance(adversarial, images) <= eps * (1 + NORM_ROUNDING) + PIXEL_ROUNDING


def inside_threat(adversarial: Tensor, images: Tensor, threat: Threat) -> Tensor:
    """Return whether each attacked image is in the ball around its image and in [0, 1], up to rounding."""
    in_box = ((adversarial >= -SLACK) & (adversarial <= 1 + SLACK)).flatten(1).all(1)
    return in_box & inside_ball(adversarial, images, threat)


def check_share_outside(outside: int, attacked: int, threat: Threat | None) -> None:
    """Raise an error if most attacked images are outside the threat model."""
    if threat is not None and outside > MOST * attacked:
        expected = f"attacked images within {threat_title(threat)} and [0, 1]"
        raise ValueError(f"expected {expected}, got {outside} of {attacked} outside: {OUTSIDE_HINT}")


def describe_outside(outside: int, attacked: int, threat: Threat) -> str:
    """Return in words how many attacked images are outside the threat model."""
    where = f"farther than {threat_title(threat)} from the original or leave [0, 1]"
    return f"{outside} of {attacked} attacked images are {where}, and count as not fooled"


def check_returned(adversarial: object, images: Tensor) -> Tensor:
    """Return what a user's attack function returned, or raise an error unless it is one finite image for each."""
    if isinstance(adversarial, tuple | list) and any(isinstance(part, Tensor) for part in adversarial):
        hint = "return the images only, for example with lambda model, x, y: attack(model, x, y)[0]"
        raise TypeError(f"expected one tensor of images from the attack, got {len(adversarial)} objects: {hint}")
    try:
        check_image_form(adversarial)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(f"the attack returned something else than images: {error}") from error
    assert isinstance(adversarial, Tensor)
    form, wanted = ((tuple(each.shape), each.dtype, each.device) for each in (adversarial, images))
    if form != wanted:
        expected, found = (f"shape {shape}, {dtype}, on {device}" for shape, dtype, device in (wanted, form))
        hint = "return one image for each image, in the same order and form"
        raise ValueError(f"expected attacked images of {expected}, got {found}: {hint}")
    if not (finite := adversarial.isfinite().flatten(1).all(1)).all():
        found = f"NaN or infinite values in {int((~finite).sum())} of {len(finite)}"
        raise ValueError(f"expected finite images from the attack, got {found}: look for a division by zero in it")
    return adversarial.detach()
