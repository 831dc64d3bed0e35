"""Types of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

# Called with the share of the work that is done.
ProgressCallback = Callable[[float], None]


def ignore_progress(progress: object) -> None:
    """Do nothing: the default of a progress callback."""
