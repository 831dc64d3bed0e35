"""What an attack is given, and what it makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_smoothing.threat import Threat


@dataclass(frozen=True)
class AttackInput:
    """Images with what an attack has to know of them: labels, positions in the data set, logits, radii.

    `worst` is what earlier attacks have made of them, where there were any.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    logits: Tensor
    threat: Threat
    worst: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def eps(self) -> Tensor:
        return torch.as_tensor(self.threat.eps, dtype=torch.float32, device=self.images.device).expand(len(self))

    def take(self, which: Tensor) -> AttackInput:
        images, labels, index, logits = (part[which] for part in (self.images, self.labels, self.index, self.logits))
        worst = None if self.worst is None else self.worst[which]
        return AttackInput(images, labels, index, logits, self.threat.take(which), worst)


@dataclass
class AttackOutcome:
    """What an attack made of each image: whether it fell, its worst version and margin, the queries spent on it.

    The margin and the logits of an image that fell are those it was judged by; of another, the margin is what the
    attack believes, and the logits are unknown.
    """

    fooled: Tensor
    worst: Tensor
    margin: Tensor
    logits: Tensor
    queries: Tensor

    @classmethod
    def before(cls, shot: AttackInput) -> AttackOutcome:
        nobody, none = torch.zeros_like(shot.labels, dtype=torch.bool), torch.zeros_like(shot.labels)
        low = torch.full(shot.labels.shape, -torch.inf, device=shot.images.device)
        return cls(nobody, shot.images.clone(), low, torch.zeros_like(shot.logits), none)
