import pytest
import torch

from adaptive_smoothing.data.batches import cutout

KEY = {"seed": 0, "epoch": 1, "step": 2}


def test_one_square_of_each_image_is_erased_also_across_the_border():
    images = torch.zeros(200, 3, 16, 16)
    erased = cutout(images, 6, **KEY) == 0.5
    assert torch.equal(erased[:, 0], erased[:, 1]) and torch.equal(erased[:, 0], erased[:, 2])
    area = erased[:, 0].flatten(1).sum(1)
    assert area.max() == 36 and area.min() >= 9
    for image in erased[:20, 0]:
        rows, columns = image.any(1).sum(), image.any(0).sum()
        assert image.sum() == rows * columns  # a rectangle


def test_same_key_same_squares_and_zero_erases_nothing():
    images = torch.rand(8, 3, 16, 16)
    assert torch.equal(cutout(images, 4, **KEY), cutout(images, 4, **KEY))
    assert not torch.equal(cutout(images, 4, **KEY), cutout(images, 4, **(KEY | {"step": 3})))
    assert cutout(images, 0, **KEY) is images


@pytest.mark.parametrize("size", [1, 5, 16])
def test_other_pixels_do_not_change(size):
    images = torch.rand(8, 3, 16, 16)
    result = cutout(images, size, **KEY)
    kept = result != 0.5
    assert torch.equal(result[kept], images[kept])
