"""Classifiers: their contract, architectures, weights, smoothing, features and digests."""
