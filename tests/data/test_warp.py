import torch

from adaptive_smoothing.data.warp import warp

KEY = {"seed": 0, "epoch": 1, "step": 2}


def test_same_key_same_turns_and_zero_changes_nothing():
    images = torch.rand(8, 3, 6, 6)
    assert torch.equal(warp(images, 10, **KEY), warp(images, 10, **KEY))
    assert not torch.equal(warp(images, 10, **KEY), warp(images, 10, **(KEY | {"step": 3})))
    assert warp(images, 0.0, **KEY) is images


def test_the_middle_stays_and_the_border_moves():
    steep = torch.linspace(0, 1, 33).expand(64, 1, 33, 33).contiguous()
    moved = (warp(steep, 20, **KEY) - steep).abs()
    assert moved[:, 0, 16, 16].max() < 1e-5
    assert moved[:, 0, 16, 4].max() > 0.05


def test_they_stay_images():
    changed = warp(torch.rand(50, 3, 8, 8).round(), 30, **KEY)
    assert changed.min() >= 0 and changed.max() <= 1
