"""Labelled images: their sources, splits and batches."""
