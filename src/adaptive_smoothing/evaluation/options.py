"""Options of an evaluation that change its speed or its checks, not what is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `evaluate`; with a function as the attack only `batch_size` applies.

    Args:
        batch_size: images per batch; the default suits the device and the size of the images.
        shard_size: images that are attacked and journalled together; default 1,000, on a CPU 32.
        compiled: compile the model; by default from 5,000 images on, on CUDA only.
        precise: search for attacks in float32 as well; successes are always confirmed in float32.
        alarms: check for signs of masked gradients.
    """

    batch_size: int | None = None
    shard_size: int | None = None
    compiled: bool | None = None
    precise: bool = False
    alarms: bool = True


DEFAULT_OPTIONS = EvaluationOptions()
