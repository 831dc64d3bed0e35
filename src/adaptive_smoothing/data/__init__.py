"""Labelled images: their sources, splits and batches."""

# The function `batches` is not re-exported: it would hide the module of the same name.
from adaptive_smoothing.data.datasets import ImageData, from_dataset, from_tensors, load

__all__ = ["ImageData", "from_dataset", "from_tensors", "load"]
