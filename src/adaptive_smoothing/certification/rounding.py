"""Allowances for rounding errors, in one place.

The theorems are about exact numbers. Each allowance exceeds the floating-point error at its place, and is applied in
the direction that makes a certificate smaller.
"""

# radius.py, every radius, relative and absolute: float64 arithmetic and its special functions.
RADIUS = 1e-9
# bounds.py, every upper bound, relative: the inverse of the incomplete beta function, and sums of logarithms.
BOUND = 1e-9
# sampling.py, every observed error, relative: a sum of probabilities in float32.
PROBABILITY_SUM = 1e-5
# target.py, every alpha below 1, absolute: the user computes the mixture in float32.
ALPHA = 1e-6
# lipschitz.py, every lead of logits, in multiples of the difference between float32 and float64 logits at the image:
# the user runs the network in float32, also at perturbed images.
LOGIT_ERRORS = 100.0
# certify.py, radii converted from L2 to Linf, relative: the division by the root of the dimension.
L2_TO_LINF = 1e-9
# certify.py, a wanted radius converted from Linf to L2, relative: what `RADIUS` and `L2_TO_LINF` subtract again.
LINF_TO_L2 = 3e-9
