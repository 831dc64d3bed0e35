"""How a method says how far it is with some images."""

from collections.abc import Callable

# Told the share of the work that is done.
Tell = Callable[[float], None]


def nothing(share: float) -> None:
    """For those who do not ask."""
