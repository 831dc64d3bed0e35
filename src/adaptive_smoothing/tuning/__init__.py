"""Choosing the operating point of a mixture: its alpha, or the shift of a learned alpha."""
