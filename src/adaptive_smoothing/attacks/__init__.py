"""Attacks on classifiers: single attacks, cascades of them, presets, and the views that gradients are taken from."""
