import pytest
import torch

from adaptive_smoothing.data.jitter import jitter

KEY = {"seed": 0, "epoch": 1, "step": 2}


def test_same_key_same_colours_and_zero_changes_nothing():
    images = torch.rand(8, 3, 6, 6)
    assert torch.equal(jitter(images, 0.3, **KEY), jitter(images, 0.3, **KEY))
    assert not torch.equal(jitter(images, 0.3, **KEY), jitter(images, 0.3, **(KEY | {"step": 3})))
    assert jitter(images, 0.0, **KEY) is images


def test_each_image_has_its_own_brightness_contrast_and_saturation():
    generator = torch.Generator().manual_seed(0)
    images = 0.4 + 0.2 * torch.rand(500, 3, 6, 6, generator=generator)
    changed = jitter(images, 0.3, **KEY)
    brightness = changed.mean((1, 2, 3)) / images.mean((1, 2, 3))
    gray, gray_before = changed.mean(1), images.mean(1)
    contrast = gray.flatten(1).std(1) / gray_before.flatten(1).std(1) / brightness
    saturation = (changed - gray[:, None]).flatten(1).std(1) / (images - gray_before[:, None]).flatten(1).std(1)
    saturation /= brightness * contrast
    for factor in (brightness, contrast, saturation):
        assert 0.7 - 1e-4 < factor.min() < 0.72 and 1.28 < factor.max() < 1.3 + 1e-4
        assert factor.mean().item() == pytest.approx(1, abs=0.03)


def test_they_stay_images():
    changed = jitter(torch.rand(50, 3, 6, 6).round(), 0.9, **KEY)
    assert changed.min() >= 0 and changed.max() <= 1
