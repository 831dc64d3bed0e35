"""Random numbers that depend on a key, not on when they are drawn.

A generator is made from a seed and a key (a stream's name, an epoch, a step, ...). The same key gives the same numbers
however the work was batched, interrupted or resumed. `fold` and `uniform` compute numbers on the device from one key
per image, without a generator.
"""

import hashlib
from typing import TypeVar

import torch
from torch import Tensor

# The mask of the 32 bits of a key.
WORD = 0xFFFFFFFF

Word = TypeVar("Word", Tensor, int | Tensor)


def keyed_seed(seed: int, *key: object) -> int:
    """Return a 63-bit seed that is a fixed function of `seed` and `key`."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator on `device` for this seed and key."""
    return torch.Generator(device=device).manual_seed(keyed_seed(seed, *key))


def to_device(drawn: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`. The CPU does not wait for the copy, which needs pinned memory."""
    return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)


def fold(keys: Tensor, value: int | Tensor) -> Tensor:
    """Return new 32-bit keys, as int64, from keys and a value that distinguishes them: an image, a job, a step."""
    # The scrambled value has 64 bits; a compiled `arange` has fewer, and its product would overflow.
    return _scramble((_scramble(keys) + _scramble(value ^ 0x5BD1E995)) & WORD)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return `count` numbers in [0, 1) for each key, [N, count]. They depend on neither the device nor other keys."""
    positions = torch.arange(count, device=keys.device)
    return (fold(keys[:, None], positions) >> 8).float() * 2**-24


def _scramble(word: Word) -> Word:
    """Return a bijection of 32-bit words in which every bit affects every other (a multiply-xorshift hash)."""
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & WORD
    word = ((word ^ (word >> 15)) * 0xD35A2D97) & WORD
    return word ^ (word >> 15)
