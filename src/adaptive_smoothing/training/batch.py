"""The batch of a training step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TrainingBatch(NamedTuple):
    """Images in [0, 1], their labels, their positions in the training set, and the generator of this step."""

    images: Tensor
    labels: Tensor
    positions: Tensor
    epoch: int
    noise: torch.Generator
