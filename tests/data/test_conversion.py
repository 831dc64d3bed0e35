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
        (torch.full((3, 4, 4), 200.0), r"expected images in \[0, 1\], got \[200, 200\]: .*divide them by 255"),
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
    with pytest.raises(ValueError, match=r"expected images of one size, got 4 x 4 and 5 x 5: pass crop=224"):
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


# -- items that are dictionaries, photographs, and rounding -------------------------------------------------


def test_items_may_be_dictionaries() -> None:
    images = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8)
    for image, label in (("image", "label"), ("img", "fine_label"), ("pixel_values", "labels")):
        items = [{"id": 7, image: picture, label: number} for number, picture in enumerate(images)]
        data = from_dataset(items)
        assert torch.equal(data.images, images) and data.labels.tolist() == [0, 1, 2]
    items = [{"x": picture, "label": 9, "y": number} for number, picture in enumerate(images)]
    assert from_dataset(items, image="x", label="y").labels.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"expected a key such as image, img, .* got x, label, y: pass image="):
        from_dataset(items)


def test_photographs_of_several_sizes_are_resized_and_cropped() -> None:
    sizes = [(30, 20), (25, 40), (16, 16)]
    items = [(Image.new("RGB", size, (number, 0, 0)), number) for number, size in enumerate(sizes)]
    data = from_dataset(items, resize=16, crop=12)
    assert data.images.shape == (3, 3, 12, 12) and data.images[:, 0, 5, 5].tolist() == [0, 1, 2]
    with pytest.raises(
        ValueError, match="expected images of one size, got 16 x 16 and 20 x 30 and 40 x 25: pass crop="
    ):
        from_dataset(items)
    with pytest.raises(ValueError, match="expected PIL images or uint8 arrays to resize or crop, got Tensor"):
        from_dataset([(torch.zeros(3, 8, 8), 0)], crop=4)


def test_gray_photographs_become_rgb_beside_coloured_ones() -> None:
    data = from_dataset([(Image.new("L", (4, 4), 9), 0), (Image.new("RGB", (4, 4), (1, 2, 3)), 1)])
    assert data.images[:, :, 0, 0].tolist() == [[9, 9, 9], [1, 2, 3]]


def test_floats_between_levels_are_rounded_on_request() -> None:
    images = torch.linspace(0, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    expected = (images.double() * 255).round().to(torch.uint8)
    largest = (images.double() * 255 - expected).abs().max().item()
    message = rf"the images of data were rounded .*, by at most {largest / 255:.2g} \({largest:.2f} of the distance"
    with pytest.warns(UserWarning, match=message):
        assert torch.equal(from_tensors(images, [0], round=True).images, expected)
    with pytest.warns(UserWarning, match=rf"the images of list were rounded .*\({largest:.2f} of"):
        assert torch.equal(from_dataset([(images[0], 0)], round=True).images, expected)
    with pytest.raises(ValueError, match=r"pass round=True \(--data 'hf:NAME\?round=1'\)"):
        from_tensors(images, [0])
    with pytest.raises(ValueError, match=r"got \[nan, nan\]: find the step .* that produces NaN"):
        from_tensors(images * torch.nan, [0])
    with pytest.raises(ValueError, match=r"expected images in \[0, 1\]"):
        from_tensors(images * 2, [0], round=True)


def test_exact_levels_are_not_rounded(recwarn: pytest.WarningsRecorder) -> None:
    from_tensors(torch.arange(192).view(1, 3, 8, 8) / 255, [0], round=True)
    assert not recwarn.list


def test_data_sets_of_torchvision_keep_their_classes() -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    fake = datasets.FakeData(size=3, image_size=(3, 10, 12), num_classes=4)
    data = from_dataset(fake, crop=8)
    assert data.images.shape == (3, 3, 8, 8)
    assert data.labels.tolist() == [int(fake[k][1]) for k in range(3)]
