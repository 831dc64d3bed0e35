"""Images and their labels: where they come from, how they are split, and how they are batched."""

# `batches.py` is not re-exported: its function `batches` would take the place of the module of that name.
from adaptive_smoothing.data.datasets import ImageData, from_dataset, from_tensors, load

__all__ = ["ImageData", "from_dataset", "from_tensors", "load"]
