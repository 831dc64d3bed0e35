"""Images and their labels: where they come from, how they are split, and how they are batched."""

from adaptive_smoothing.data.batches import Batch, TrainingBatch, augment, batches, shuffled, steps_per_epoch
from adaptive_smoothing.data.datasets import ImageData, from_dataset, from_tensors, load

__all__ = [
    "Batch",
    "ImageData",
    "TrainingBatch",
    "augment",
    "batches",
    "from_dataset",
    "from_tensors",
    "load",
    "shuffled",
    "steps_per_epoch",
]
