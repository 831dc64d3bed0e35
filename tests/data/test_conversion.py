"""Tensors, arrays and torch data sets become the same images; whatever would change them is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from adaptive_smoothing.data.conversion import from_dataset, from_tensors


class Items(Dataset):
    """A data set that gives back a list of (image, label)."""

    def __init__(self, items: list[tuple[object, object]]) -> None:
        self.items = items
        self.classes = ["no", "yes"]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[object, object]:
        return self.items[i]


def test_every_kind_of_item_gives_the_same_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), np.uint8)
    chw = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    kinds = [list(pixels), [Image.fromarray(image) for image in pixels], list(chw), list(chw.float() / 255)]
    kinds += [list(pixels / 255.0), list(chw.double() / 255)]
    for images in kinds:
        data = from_dataset(Items([(images[0], 1), (images[1], torch.tensor(0))]), name="items")
        assert torch.equal(data.images, chw)
        assert (data.labels.tolist(), data.classes, data.name) == ([1, 0], ("no", "yes"), "items")


def test_gray_images_keep_one_channel() -> None:
    data = from_dataset(Items([(Image.new("L", (4, 5), 9), 0), (np.full((5, 4), 9, np.uint8), 1)]))
    assert data.images.shape == (2, 1, 5, 4)
    assert (data.images == 9).all()


def test_subset_remembers_where_it_was_cut_from() -> None:
    whole = TensorDataset(torch.zeros(9, 3, 4, 4), torch.arange(9))
    data = from_dataset(Subset(Subset(whole, [8, 3, 5]), [2, 0]))
    assert data.index.tolist() == data.labels.tolist() == [5, 8]


def test_float_levels_survive_the_round_trip() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(from_tensors(levels.to(dtype) / 255, [0]).images, levels)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.randn(3, 4, 4), r"expected images in \[0, 1\].*normalisation belongs"),
        (torch.full((3, 4, 4), float("nan")), r"expected images in \[0, 1\]"),
        (torch.full((3, 4, 4), 0.1234), "100.0% of the values .* such as 0.1234"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "got torch.int64"),
        (torch.zeros(32, 32, 3), "permute it"),
        (np.zeros((3, 32, 32), np.uint8), "permute it"),
        ("cat.png", "got str"),
    ],
)
def test_items_that_cannot_be_kept_are_refused(image: object, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        from_dataset(Items([(image, 0)]))


def test_data_sets_that_cannot_be_stacked_are_refused() -> None:
    with pytest.raises(ValueError, match="expected images of one shape"):
        from_dataset(Items([(np.zeros((4, 4), np.uint8), 0), (np.zeros((5, 5), np.uint8), 0)]))
    with pytest.raises(ValueError, match="expected a dataset with a length"):
        from_dataset(Dataset())
    with pytest.raises(ValueError, match="pass class positions, not scores"):
        from_tensors(torch.zeros(2, 3, 4, 4), torch.rand(2))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_last_is_refused(dtype: type) -> None:
    with pytest.raises(ValueError, match=r"got \(2, 8, 8, 3\), which looks like \(N, H, W, C\): .*permute"):
        from_tensors(np.zeros((2, 8, 8, 3), dtype), [0, 1])


def test_a_loader_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a dataset, got a DataLoader: pass loader\.dataset"):
        from_dataset(DataLoader(TensorDataset(torch.zeros(2, 3, 4, 4), torch.zeros(2))))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (TensorDataset(torch.zeros(2, 3, 4, 4)), r"expected items \(image, label\), got a tuple of 1: .*from_tensors"),
        (list(torch.zeros(2, 3, 4, 4)), "got a Tensor of 3"),
        ([{"image": torch.zeros(3, 4, 4), "label": 0}], "got a dict of 2"),
        (TensorDataset(torch.zeros(2, 3, 4, 4), torch.eye(2)), r"got torch.float32 of shape \(2,\): .*label.argmax"),
        (TensorDataset(torch.zeros(2, 3, 4, 4), torch.rand(2)), r"expected a whole number as label, got torch.float32"),
        ([(torch.zeros(3, 4, 4), "cat")], "expected a whole number as label, got 'cat'"),
    ],
)
def test_items_without_a_class_are_refused(items: Dataset, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_dataset(items)


def test_labels_may_be_arrays_of_one_number() -> None:
    assert from_dataset([(torch.zeros(3, 4, 4), np.array([2]))]).labels.tolist() == [2]
