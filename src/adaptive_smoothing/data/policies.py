"""Augmentation policies of torchvision, applied to all images of a training set on the device that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaptive_smoothing.noise import generator, keyed_seed, to_device

# The names of the policies, and the classes of torchvision.transforms.v2. AutoAugment has the policy of CIFAR-10.
LIBRARY = {"autoaugment": "AutoAugment", "trivialaugment": "TrivialAugmentWide", "randaugment": "RandAugment"}
POLICIES = (*LIBRARY, "mild")
# Images that a policy changes in the same way. A training batch has images of many such groups.
GROUP = 100


def apply_policy(images: Tensor, policy: str, *, seed: int, epoch: int) -> Tensor:
    """Return uint8 images, each changed as the policy draws it for this epoch.

    A call of torchvision changes all images of a tensor in the same way. So the images are divided into random groups,
    and each group is one call.
    """
    transform = _transform(policy)
    drawn = torch.randperm(len(images), generator=generator(seed, "policy groups", epoch))
    order = to_device(drawn, images.device)
    result = torch.empty_like(images)
    with torch.random.fork_rng(devices=[]):
        # torchvision draws from the CPU generator of torch. `torch.manual_seed` would also change those of the GPUs.
        torch.default_generator.manual_seed(keyed_seed(seed, "policy", epoch))
        for group in order.split(GROUP):
            result[group] = transform(images[group])
    return result


def _transform(policy: str) -> Callable[[Tensor], Tensor]:
    """Return the transform of torchvision."""
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:  # a package that was built for another torch is a RuntimeError
        hint = 'pip install "adaptive-smoothing[torchvision]", or leave data.policy and data.second_policy out'
        raise ImportError(f"expected torchvision for the policy {policy!r}, got none ({error}): {hint}") from error
    if policy == "mild":
        return mild()
    options: dict[str, Any] = {"policy": v2.AutoAugmentPolicy.CIFAR10} if policy == "autoaugment" else {}
    transform: Callable[[Tensor], Tensor] = getattr(v2, LIBRARY[policy])(**options)
    return transform


def mild() -> Callable[[Tensor], Tensor]:
    """Return a transform that makes one small change of colour or shape, drawn at random.

    The changes are similar to those of IDBH for CIFAR-10 (Li and Spratling 2023).
    """
    from torchvision.transforms import v2

    changes: list[Callable[[Tensor], Tensor]] = [
        v2.ColorJitter(saturation=(0.1, 1.9)),
        v2.ColorJitter(brightness=(0.5, 1.9)),
        v2.ColorJitter(contrast=(0.5, 1.9)),
        v2.RandomChoice([v2.RandomAdjustSharpness(factor / 10, p=1) for factor in range(1, 20)]),
        v2.RandomAutocontrast(p=1),
        v2.RandomEqualize(p=1),
        v2.RandomChoice([v2.RandomAffine(0, shear=(-9, 9)), v2.RandomAffine(0, shear=(0, 0, -9, 9))]),
        v2.RandomRotation(10),
    ]
    choice: Callable[[Tensor], Tensor] = v2.RandomChoice(changes)
    return choice
