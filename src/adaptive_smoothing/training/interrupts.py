"""Signals that end a training run after the current step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether a signal was received."""

    raised = False


@contextmanager
def delayed_interrupts() -> Iterator[Interrupt]:
    """Let the step finish on the first SIGINT or SIGTERM, so that a whole checkpoint can be written.

    A second signal has its usual effect.
    """
    interrupt = Interrupt()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handler(number: int, frame: FrameType | None) -> None:
        interrupt.raised = True
        restore()

    try:
        for number in previous:
            signal.signal(number, handler)
    except ValueError:  # signals can be handled in the main thread only
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        restore()
