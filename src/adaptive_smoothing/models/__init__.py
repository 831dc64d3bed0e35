"""Classifiers: what one is, how to make or load one, how to smooth one, how to look inside one."""
