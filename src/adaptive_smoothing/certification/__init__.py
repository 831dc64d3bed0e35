"""Radii that hold: a certificate is a theorem with a probability on it, anything else is called an estimate."""
