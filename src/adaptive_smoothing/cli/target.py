"""The dial by its target: a wanted clean accuracy, as people type it, to the alpha that is reported."""

from __future__ import annotations

from rich.console import Console

from adaptive_smoothing.report.sentences import Choice, percent
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve

# In a run folder: between which alphas each validation image is right. Any other target can be read from it.
VALIDATION = "validation.npz"


def as_share(wanted: float) -> float:
    """0.9 and 90 mean the same: nobody wants to be right on 10 % of the images, as a guess is."""
    if 0 < wanted <= 1:
        return wanted
    if 10 < wanted <= 100:
        return wanted / 100
    raise ValueError(f"expected an accuracy, got {wanted:g}: ask for 0.9, or for 90 in percent")


def choose(accuracy: CleanAccuracyCurve, wanted: float, console: Console) -> Choice:
    """The largest alpha with the wanted accuracy on validation images: the test images are for reporting."""
    alpha, images = accuracy.largest_setting(wanted), len(accuracy.low)
    choice = Choice(wanted, alpha, accuracy(alpha), images)
    console.print(
        f"For a clean accuracy of {percent(wanted)}, the largest α is {alpha:.3f}: it gives "
        f"{choice.reached} on {images:,} validation images.\n"
    )
    return choice
