"""What a training step is given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TrainingBatch(NamedTuple):
    """Images in [0, 1] with their labels, their positions in the training set, and this step's random numbers."""

    images: Tensor
    labels: Tensor
    positions: Tensor
    epoch: int
    noise: torch.Generator
