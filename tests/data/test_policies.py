"""Augmentation policies, compared with torchvision image by image."""

import sys

import pytest
import torch

from adaptive_smoothing.data import policies
from adaptive_smoothing.data.policies import GROUP, POLICIES, apply_policy


def images(count=2 * GROUP + 7):
    return torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_depends_on_seed_and_epoch_only(policy):
    before, state = images(), torch.random.get_rng_state()
    first, again = (apply_policy(before, policy, seed=1, epoch=2) for _ in range(2))
    assert torch.equal(first, again) and first.dtype == torch.uint8 and not torch.equal(first, before)
    assert not torch.equal(first, apply_policy(before, policy, seed=1, epoch=3))
    assert not torch.equal(first, apply_policy(before, policy, seed=2, epoch=2))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_every_image_keeps_its_place(monkeypatch):
    monkeypatch.setattr(policies, "_transform", lambda name: lambda group: 255 - group)
    assert torch.equal(apply_policy(images(), "autoaugment", seed=0, epoch=0), 255 - images())


def test_every_image_is_one_that_torchvision_makes_of_it():
    """With many draws for one image, torchvision makes every possible image of AutoAugment."""
    from torchvision.transforms import v2

    one = images(1)
    transform = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    possible = {transform(one).numpy().tobytes() for _ in range(4000)}
    made = apply_policy(one.repeat(10 * GROUP, 1, 1, 1), "autoaugment", seed=0, epoch=0)
    assert {image.numpy().tobytes() for image in made} <= possible


def test_without_torchvision_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(ImportError, match=r"adaptive-smoothing\[torchvision\]"):
        apply_policy(images(), "autoaugment", seed=0, epoch=0)
