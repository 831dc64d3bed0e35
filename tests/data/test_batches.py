"""Batches hold every image once and depend on seeds, not on devices; augmentation equals a slow loop."""

import pytest
import torch
from torch import Tensor

from adaptive_smoothing.data.batches import augment, batches, cutout, shuffled, steps_per_epoch
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.noise import generator


def numbered(count: int = 10) -> ImageData:
    """Image i is filled with i and has label i."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()
    return from_tensors(images, range(count), index=range(100, 100 + count))


def random_levels(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=generator(0, "test"), dtype=torch.uint8)


# -- in order -----------------------------------------------------------------------------------------------


def test_batches_hold_every_image_in_order() -> None:
    found = list(batches(numbered(), 4))
    assert [len(batch.images) for batch in found] == [4, 4, 2]
    assert torch.cat([batch.labels for batch in found]).tolist() == list(range(10))
    assert torch.cat([batch.index for batch in found]).tolist() == list(range(100, 110))
    images = torch.cat([batch.images for batch in found])
    assert torch.equal(images, numbered().floats())
    assert images.dtype == torch.float32


def test_batches_unpack_and_move() -> None:
    for images, labels, index in batches(numbered(), 10, device=torch.device("meta")):
        assert images.device.type == labels.device.type == index.device.type == "meta"


def test_batches_do_not_change_the_data() -> None:
    data = numbered()
    before = data.fingerprint()
    for batch in batches(data, 10):
        batch.images.zero_()
    assert data.fingerprint() == before


def test_batches_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr("adaptive_smoothing.data.batches.to_floats", lambda images: made.append(len(images)))
    stream = batches(numbered(), 4)
    assert made == []
    next(stream)
    assert made == [4]


# -- shuffled -----------------------------------------------------------------------------------------------


def test_shuffled_gives_full_batches_of_different_images() -> None:
    found = list(shuffled(numbered(), 3, seed=1, epoch=0))
    assert len(found) == steps_per_epoch(numbered(), 3) == 3
    positions = torch.cat([batch.positions for batch in found])
    assert len(set(positions.tolist())) == 9
    assert positions.tolist() == torch.cat([batch.labels for batch in found]).tolist()
    for batch in found:
        assert batch.images.dtype == torch.uint8
        assert torch.equal(batch.images[:, 0, 0, 0].long(), batch.positions)


def test_shuffled_is_keyed_by_seed_and_epoch_and_resumes() -> None:
    def order(seed: int, epoch: int, start: int = 0) -> list[list[int]]:
        return [batch.positions.tolist() for batch in shuffled(numbered(), 2, seed=seed, epoch=epoch, start=start)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) != order(2, 1)
    assert order(1, 0, start=3) == order(1, 0)[3:]
    assert order(1, 0, start=5) == []


def test_impossible_batches_are_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="expected size of at least 1, got 0"):
        batches(numbered(), 0)
    with pytest.raises(ValueError, match="expected a batch size of at most 10, the size of data, got 11"):
        shuffled(numbered(), 11, seed=0, epoch=0)
    with pytest.raises(ValueError, match="expected start from 0 to 5, the steps of an epoch, got 6"):
        shuffled(numbered(), 2, seed=0, epoch=0, start=6)
    with pytest.raises(ValueError, match="expected pad from 0 to 3, got 4"):
        augment(torch.zeros(1, 3, 4, 4), seed=0, epoch=0, step=0)


# -- augmentation -------------------------------------------------------------------------------------------


def slow_augment(images: Tensor, key: dict[str, int], pad: int, flip: bool) -> Tensor:
    """One image at a time: pad, cut out, mirror."""
    chance = generator(key["seed"], "augment", key["epoch"], key["step"])
    count, _, height, width = images.shape
    shifts = torch.randint(2 * pad + 1, (2, count, 1), generator=chance)
    mirrored = torch.randint(2, (1, count, 1), generator=chance)
    results = []
    for i, image in enumerate(images.double()):
        padded = torch.nn.functional.pad(image[None], [pad] * 4)[0]
        top, left = shifts[0, i, 0], shifts[1, i, 0]
        cut = padded[:, top : top + height, left : left + width]
        results.append(cut.flip(-1) if flip and mirrored[0, i, 0] else cut)
    return torch.stack(results).to(images.dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 14)])
@pytest.mark.parametrize(("pad", "flip"), [(4, True), (2, False), (0, True)])
def test_augment_equals_the_slow_loop(dtype: torch.dtype, height: int, width: int, pad: int, flip: bool) -> None:
    images, key = random_levels(64, 3, height, width).to(dtype), {"seed": 3, "epoch": 2, "step": 7}
    fast = augment(images, **key, pad=pad, flip=flip)
    assert fast.dtype == dtype
    assert torch.equal(fast, slow_augment(images, key, pad, flip))


def test_augment_with_nothing_to_do_changes_nothing() -> None:
    images = random_levels(8, 3, 6, 6)
    assert torch.equal(augment(images, seed=0, epoch=0, step=0, pad=0, flip=False), images)


def test_augment_is_keyed_by_seed_epoch_and_step() -> None:
    images = random_levels(16, 3, 8, 8)
    one = augment(images, seed=0, epoch=0, step=0)
    assert torch.equal(one, augment(images, seed=0, epoch=0, step=0))
    for key in (
        {"seed": 1, "epoch": 0, "step": 0},
        {"seed": 0, "epoch": 1, "step": 0},
        {"seed": 0, "epoch": 0, "step": 1},
    ):
        assert not torch.equal(one, augment(images, **key))  # type: ignore[arg-type]


def test_augment_uses_every_shift_and_mirrors_half() -> None:
    """Each image has its column number as its value, so that the result shows the shift."""
    count, size = 2000, 16
    images = torch.arange(1, size + 1, dtype=torch.uint8).expand(count, 1, size, size).contiguous()
    row = augment(images, seed=0, epoch=0, step=0)[:, 0, size // 2].long()
    mirrored = row[:, size // 2] < row[:, size // 2 - 1]
    assert abs(mirrored.double().mean() - 0.5) < 0.05
    centre = row.where(~mirrored[:, None], row.flip(-1))[:, size // 2]
    counts = torch.bincount(centre - size // 2 - 1 + 4, minlength=9)
    assert len(counts) == 9
    assert counts.min() > count / 9 * 0.75


def test_augment_does_not_change_its_input() -> None:
    images = random_levels(8, 3, 8, 8)
    before = images.clone()
    augment(images, seed=0, epoch=0, step=0).zero_()
    assert torch.equal(images, before)


# -- cutout -------------------------------------------------------------------------------------------------


KEY = {"seed": 0, "epoch": 1, "step": 2}


def test_cutout_erases_one_square_of_each_image_also_across_the_border() -> None:
    images = torch.zeros(200, 3, 16, 16)
    erased = cutout(images, 6, **KEY) == 0.5
    assert torch.equal(erased[:, 0], erased[:, 1]) and torch.equal(erased[:, 0], erased[:, 2])
    area = erased[:, 0].flatten(1).sum(1)
    assert area.max() == 36 and area.min() >= 9
    for image in erased[:20, 0]:
        rows, columns = image.any(1).sum(), image.any(0).sum()
        assert image.sum() == rows * columns  # a rectangle


def test_cutout_is_keyed_by_the_step_and_size_zero_erases_nothing() -> None:
    images = torch.rand(8, 3, 16, 16)
    assert torch.equal(cutout(images, 4, **KEY), cutout(images, 4, **KEY))
    assert not torch.equal(cutout(images, 4, **KEY), cutout(images, 4, **(KEY | {"step": 3})))
    assert cutout(images, 0, **KEY) is images


@pytest.mark.parametrize("size", [1, 5, 16])
def test_cutout_does_not_change_other_pixels(size: int) -> None:
    images = torch.rand(8, 3, 16, 16)
    result = cutout(images, size, **KEY)
    kept = result != 0.5
    assert torch.equal(result[kept], images[kept])


# -- on a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gives_the_same_bits_without_waiting() -> None:
    images = random_levels(512, 3, 32, 32)
    data = from_tensors(images, torch.zeros(512, dtype=torch.int64))
    on_gpu = data.to("cuda")
    assert torch.equal(on_gpu.floats().cpu(), data.floats())
    pairs = zip(shuffled(on_gpu, 100, seed=0, epoch=0), shuffled(data, 100, seed=0, epoch=0), strict=True)
    assert all(torch.equal(a.images.cpu(), b.images) for a, b in pairs)
    augment(on_gpu.images, seed=0, epoch=0, step=0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = augment(on_gpu.images, seed=0, epoch=0, step=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(result.cpu(), augment(images, seed=0, epoch=0, step=1))
