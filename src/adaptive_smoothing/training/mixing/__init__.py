"""Training of a mixer, such as the paper's mixing network, for two base classifiers that are not changed.

A training step (`trainer`) has four parts:

1. `operating_point`: choose the shift of alpha for the target accuracy, every few steps, if the recipe has a target.
2. `attacks`: attack the clean images of the batch, by one of the paper's settings A, B and C, or by `flip-standard`.
3. Compute g, h and the mixture on the clean and the attacked images. Only the mixer has gradients.
4. `loss`: minimise the paper's composite loss, whose labels of alpha are 1 where h should decide, 0 where g should.

`recipe` has all settings (`default.toml` is the default), and `train` the functions that users call: `train_mixing` for
the mixer of a given mixture, `fit_adaptive` for a new mixer.
"""
