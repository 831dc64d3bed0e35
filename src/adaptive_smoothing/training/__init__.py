"""Training of base classifiers and of mixers (`mixing`) from recipes."""
