"""Random numbers that depend on what they are for, not on when they are drawn.

A generator is made from a seed and a key (a stream's name, an epoch, a step, ...). The same key gives the
same numbers however the work was batched, interrupted or resumed. Where each image of a batch has a key of its
own (`fold`, `uniform`), the numbers are computed from the keys on the device, without a generator.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def keyed_seed(seed: int, *key: object) -> int:
    """A 63-bit seed that is a fixed function of `seed` and `key`."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on `device` for this seed and key."""
    return torch.Generator(device=device).manual_seed(keyed_seed(seed, *key))


def beside(drawn: Tensor, device: torch.device) -> Tensor:
    """What was drawn on the host, on `device`; the host goes on meanwhile, which it can from pinned memory only."""
    return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)


def fold(keys: Tensor, value: int | Tensor) -> Tensor:
    """New 32-bit keys, as int64, from keys and something that tells them apart: an image, a job, a step."""
    # Multiplied as it is, a compiled `arange` would overflow: only the scrambled value is sure to have 64 bits.
    return _scramble((_scramble(keys) + _scramble(value ^ 0x5BD1E995)) & WORD)


def uniform(keys: Tensor, count: int) -> Tensor:
    """[keys, count] numbers in [0, 1), the same on every device and beside any other keys."""
    which = torch.arange(count, device=keys.device)
    return (fold(keys[:, None], which) >> 8).float() * 2**-24


def _scramble(word: Any) -> Any:
    """A bijection of 32-bit words that lets every bit reach every other (a multiply-xorshift hash)."""
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & WORD
    word = ((word ^ (word >> 15)) * 0xD35A2D97) & WORD
    return word ^ (word >> 15)
