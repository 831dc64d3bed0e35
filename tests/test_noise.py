"""Keyed random numbers: the same for a key in any company, uniform, and different for different keys."""

import pytest
import torch

from adaptive_smoothing.noise import WORD, fold, generator, keyed_seed, uniform

KEYS = fold(torch.full((2000,), keyed_seed(0, "tests") & WORD), torch.arange(2000))


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).double())[0, 1].item()


def test_a_generator_depends_only_on_its_key():
    draw = [torch.rand(4, generator=generator(0, "a", 1)), torch.rand(4, generator=generator(0, "a", 1))]
    assert torch.equal(*draw)
    others = [generator(1, "a", 1), generator(0, "b", 1), generator(0, "a", 2), generator(0, "a", "1")]
    assert all(not torch.equal(draw[0], torch.rand(4, generator=other)) for other in others)


def hashed(word: int) -> int:
    """Return Wellons' 32-bit hash `[16 21f0aaad 15 d35a2d97 15]`, in Python integers, which do not overflow."""
    word = (word ^ (word >> 16)) * 0x21F0AAAD % 2**32
    word = (word ^ (word >> 15)) * 0xD35A2D97 % 2**32
    return word ^ (word >> 15)


def test_the_hash_does_not_overflow_64_bits():
    keys, values = [0, 1, 12345, WORD], [0, 7, WORD]
    for value in values:
        expected = [hashed((hashed(key) + hashed(value ^ 0x5BD1E995)) % 2**32) for key in keys]
        assert fold(torch.tensor(keys), value).tolist() == expected


def test_a_key_gives_the_same_numbers_among_any_others():
    together = uniform(KEYS, 50)
    assert torch.equal(uniform(KEYS[7:8], 50)[0], together[7])
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(KEYS[order], 50), together[order])
    assert torch.equal(uniform(KEYS, 20), together[:, :20])


def test_fold_accepts_a_number_or_a_tensor():
    for value in (0, 3, WORD):
        assert torch.equal(fold(KEYS, value), fold(KEYS, torch.full_like(KEYS, value)))


def test_numbers_are_uniform_in_0_1():
    numbers = uniform(KEYS, 500).double()
    assert numbers.min() >= 0 and numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(1 / 2, abs=0.002)  # 0.0003 is one standard deviation
    assert numbers.var().item() == pytest.approx(1 / 12, abs=0.001)
    bins = torch.histc(numbers, 100, 0, 1)
    assert ((bins - 1e4).square() / 1e4).sum() < 180  # chi-squared with 99 degrees of freedom: 1 in a million


def test_neighbouring_numbers_are_uncorrelated():
    numbers = uniform(KEYS, 500)
    for shift in (1, 2, 32):
        assert abs(correlation(numbers[:, shift:], numbers[:, :-shift])) < 0.005
        assert abs(correlation(numbers[shift:], numbers[:-shift])) < 0.005
    assert abs(correlation(uniform(KEYS, 500), uniform(fold(KEYS, 1), 500))) < 0.005


@pytest.mark.parametrize("mask", [1, 1 << 8, 1 << 16, 1 << 31])
def test_one_bit_of_a_key_changes_half_of_the_bits(mask):
    changed = fold(KEYS, 3) ^ fold(KEYS ^ mask, 3)
    share = torch.stack([(changed >> bit) & 1 for bit in range(32)]).double().mean(1)
    assert ((share - 0.5).abs() < 0.06).all()


def test_images_attempts_and_steps_have_different_keys():
    """Keys are made as in the engine: seed and attack, then image, attempt and step. Few of 2^32 keys coincide."""
    stream = torch.full((60,), keyed_seed(0, "apgd-t") & WORD)
    keys = [fold(fold(fold(stream, torch.arange(60)), job), step) for job in range(9) for step in range(100)]
    keys += [fold(fold(stream + 1, torch.arange(60)), job) for job in range(9)]
    every = torch.cat(keys)
    assert len(every) - len(every.unique()) < 5  # 0.35 are expected by chance
    assert every.min() >= 0 and every.max() <= WORD


def test_fold_is_not_symmetric():
    """Image 3 in attempt 5 must not have the numbers of image 5 in attempt 3."""
    stream = torch.tensor([keyed_seed(0, "x") & WORD])
    assert not torch.equal(fold(fold(stream, 3), 5), fold(fold(stream, 5), 3))
