"""Random numbers that depend on what they are for, not on when they are drawn.

A generator is made from a seed and a key (a stream's name, an epoch, a step, ...). The same key gives the
same numbers however the work was batched, interrupted or resumed.
"""

import hashlib

import torch


def keyed_seed(seed: int, *key: object) -> int:
    """A 63-bit seed that is a fixed function of `seed` and `key`."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on `device` for this seed and key."""
    return torch.Generator(device=device).manual_seed(keyed_seed(seed, *key))
