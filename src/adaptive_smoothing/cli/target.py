"""Read a wanted clean accuracy, and choose the alpha that reaches it."""

from __future__ import annotations

from rich.console import Console

from adaptive_smoothing.report.sentences import Choice, percent
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve

# In a run folder: the alphas between which each validation image is classified correctly. The alpha for any other
# clean accuracy can be computed from this file.
VALIDATION = "validation.npz"


def as_share(wanted: float) -> float:
    """Return an accuracy as a share: 0.9 and 90 mean the same."""
    if 0 < wanted <= 1:
        return wanted
    # Ten per cent or less is no better than a guess among ten classes: such a number is a typing error.
    if 10 < wanted <= 100:
        return wanted / 100
    raise ValueError(f"expected an accuracy such as 0.9, or 90 in percent, got {wanted:g}")


def choose(accuracy: CleanAccuracyCurve, wanted: float, console: Console) -> Choice:
    """Return the largest alpha with the wanted accuracy on validation images, and print it."""
    alpha, images = accuracy.largest_setting(wanted), len(accuracy.low)
    choice = Choice(wanted, alpha, accuracy(alpha), images)
    console.print(
        f"The largest α with a clean accuracy of {percent(wanted)} is {alpha:.3f}. On {images:,} validation images "
        f"it gives {choice.reached}.\n"
    )
    return choice
