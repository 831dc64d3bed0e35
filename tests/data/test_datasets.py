"""Images are found, checked and split the same way everywhere; files that cannot be trusted are refused."""

import hashlib
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.data.datasets import ImageData, load, to_floats
from adaptive_smoothing.data.find_source import validation_positions
from adaptive_smoothing.data.make_builtin import make
from adaptive_smoothing.data.sources import from_sheet, to_sheet

VALIDATION_DIGEST = "cd9f4e159f77a52017bf49445a512209caaecd7ab367d2a226bddd9f072cadf3"
BUILTIN = {
    "val": "221f306056b7b9942cc89610d5605b30384153b4ffc6f233618ebd678c266459",
    "test": "24f429dd5d5d17442f4b62f8cde0c85401798a5f0717107abc08831c91b38b31",
}


def random_images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def small(count: int = 6) -> ImageData:
    return from_tensors(random_images(count, 3, 4, 4), np.arange(count) % 3, name="small", classes=["a", "b", "c"])


# -- ImageData ----------------------------------------------------------------------------------------------


def test_take_keeps_the_official_positions() -> None:
    data = small().take([4, 1, 5])
    assert data.index.tolist() == [4, 1, 5]
    assert data.take(2).index.tolist() == [4, 1]
    assert data.take(torch.tensor([False, True, True])).index.tolist() == [1, 5]
    assert data.take(slice(1, None)).index.tolist() == [1, 5]
    assert data.take(np.int64(1)).labels.tolist() == [1]
    assert len(data.take([])) == len(data.take(0)) == 0
    assert torch.equal(data.images[1], small().images[1])
    assert data.num_classes == 3


@pytest.mark.parametrize("which", [7, -1, [6], [-1], [0.5], torch.tensor([True])])
def test_take_refuses_positions_that_do_not_exist(which: object) -> None:
    with pytest.raises(ValueError, match="expected a count"):
        small().take(which)  # type: ignore[arg-type]


def test_the_fingerprint_depends_on_the_contents_only() -> None:
    data = small()
    assert data.fingerprint() == replace(data, name="other").fingerprint() == data.to("cpu").fingerprint()
    relabelled = replace(data, labels=1 - data.labels % 2)
    moved = replace(data, index=data.index + 1)
    others = [data.take([1, 0, 2, 3, 4, 5]), data.take(5), data.take(0), relabelled, moved]
    assert len({data.fingerprint(), *(other.fingerprint() for other in others)}) == 6


def test_floats_are_exact_levels() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(
        to_floats(levels).flatten(), torch.from_numpy(np.arange(256, dtype=np.float32) / np.float32(255))
    )
    assert small().floats().shape == (6, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(6, 3, 4, 4)}, "expected uint8 images .* got torch.float32"),
        ({"images": torch.zeros(6, 4, 4, dtype=torch.uint8)}, "expected uint8 images of shape"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "expected labels as 6 int64 numbers"),
        ({"labels": torch.full((6,), 3)}, "expected labels from 0 to 2 for 3 classes, got 3 to 3"),
        ({"labels": torch.full((6,), -1)}, "got -1 to -1"),
        ({"index": torch.zeros(6)}, "expected index as 6 int64 numbers"),
    ],
)
def test_wrong_contents_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(small(), **change)  # type: ignore[arg-type]


# -- the validation split -----------------------------------------------------------------------------------


def test_validation_split_is_the_stored_one() -> None:
    positions = validation_positions(50_000)
    assert len(positions) == len(set(positions.tolist())) == 5_000
    assert hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest() == VALIDATION_DIGEST


def test_split_covers_the_training_images_once_whatever_the_file_is_called(tmp_path: Path) -> None:
    arrays = npz_arrays()
    for name in ("one.npz", "cifar10.npz"):
        np.savez(tmp_path / name, **arrays)
    train, val, test = (load(tmp_path / "one.npz", split) for split in ("train", "val", "test"))
    assert sorted([*train.index.tolist(), *val.index.tolist()]) == list(range(40))
    assert len(val) == 4
    assert val.index.tolist() == validation_positions(40).tolist()
    assert torch.equal(val.index, load("cifar10", "val", root=tmp_path).index)
    for data in (train, val):
        expected = arrays["train_images"][data.index.numpy()].transpose(0, 3, 1, 2)
        assert np.array_equal(data.images.numpy(), expected)
        assert np.array_equal(data.labels.numpy(), arrays["train_labels"][data.index.numpy()])
    assert test.index.tolist() == list(range(20))
    assert test.name == "one/test"


# -- .npz ---------------------------------------------------------------------------------------------------


def npz_arrays() -> dict[str, np.ndarray]:
    return {
        "train_images": random_images(40, 32, 32, 3),
        "train_labels": np.arange(40) % 10,
        "test_images": random_images(20, 32, 32, 3, seed=1),
        "test_labels": np.arange(20) % 7,
    }


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_classes_are_those_of_all_its_splits(tmp_path: Path) -> None:
    assert load(save(tmp_path / "a.npz", **npz_arrays())).num_classes == 10
    assert load(save(tmp_path / "cifar10.npz", **npz_arrays())).classes[3] == "cat"
    named = load(save(tmp_path / "b.npz", **npz_arrays(), classes=np.array(list("abcdefghij"))))
    assert named.classes == tuple("abcdefghij")


def test_npz_without_splits_serves_as_test_or_all_only(tmp_path: Path) -> None:
    path = save(tmp_path / "gray.npz", images=random_images(5, 8, 8), labels=np.arange(5)[:, None])
    assert load(path).images.shape == (5, 1, 8, 8)
    assert load(path, "all").fingerprint() == load(path, "test").fingerprint()
    for split in ("train", "val"):
        with pytest.raises(ValueError, match="no splits: load them as 'test' or 'all'"):
            load(path, split)


def test_npz_with_its_own_validation_images_holds_nothing_out(tmp_path: Path) -> None:
    extra = {"val_images": random_images(3, 32, 32, 3), "val_labels": np.arange(3)}
    path = save(tmp_path / "own.npz", **npz_arrays(), **extra)
    assert [len(load(path, split)) for split in ("train", "val", "test")] == [40, 3, 20]


@pytest.mark.parametrize("split", ["train+val", "all", "tset"])
def test_unknown_splits_are_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(ValueError, match="it has test, train, val; validation images are held out"):
        load(save(tmp_path / "a.npz", **npz_arrays()), split)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "expected the keys train_images.* got x"),
        ({"test_images": random_images(3, 4, 4, 3)}, "expected the key test_labels"),
        ({"images": np.zeros((3, 4, 4, 3)), "labels": np.arange(3)}, "uint8 .* got float64"),
        ({"images": random_images(3, 3, 32, 32), "labels": np.arange(3)}, "channels last"),
        ({"images": random_images(3, 4, 4, 3), "labels": np.zeros(3)}, "expected whole numbers"),
        ({"images": random_images(3, 4, 4, 3), "labels": np.array([1, "a", None], object)}, "got Python objects"),
    ],
)
def test_wrong_npz_files_are_explained(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(save(tmp_path / "wrong.npz", **arrays))


def test_a_file_that_is_no_npz_is_explained(tmp_path: Path) -> None:
    for content in (b"", b"not a zip file", pickle.dumps([1, 2])):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"expected a NumPy \.npz file"):
            load(tmp_path / "x.npz")
    np.save(tmp_path / "plain.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"expected a NumPy \.npz file"):
        load(tmp_path / "plain.npy")


def test_a_damaged_npz_is_explained(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole.npz", **npz_arrays()).read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"expected a NumPy .npz file at .*short.npz, got something else"):
        load(tmp_path / "short.npz")
    for position in range(0, 2 * len(whole) // 3, len(whole) // 50):
        (tmp_path / "flipped.npz").write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        with suppress(ValueError):
            load(tmp_path / "flipped.npz", "train")
            load(tmp_path / "flipped.npz", "test")
    middle = whole.index(npz_arrays()["test_images"].tobytes()[:16])
    (tmp_path / "flipped.npz").write_bytes(whole[:middle] + bytes([whole[middle] ^ 16]) + whole[middle + 1 :])
    with pytest.raises(ValueError, match=r"expected an array under test_images in .*, got a damaged file: Bad CRC"):
        load(tmp_path / "flipped.npz")


# -- names ---------------------------------------------------------------------------------------------------


def test_the_error_of_missing_data_lists_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_SMOOTHING_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        load("cifar10")
    for part in (str(tmp_path), "download=True", "cifar-10-python.tar.gz", "170 MB", "cs.toronto.edu", "builtin"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "guess"), [("cifra10", "cifar10"), ("built-in", "builtin")])
def test_an_unknown_name_is_explained(name: str, guess: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"does not exist: did you mean '{guess}'"):
        load(name)


def test_a_similar_folder_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "photos").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="got 'data/photo', which does not exist: did you mean 'data/photos'"):
        load("data/photo")
    monkeypatch.chdir(tmp_path / "data")
    with pytest.raises(FileNotFoundError, match="got 'photo', which does not exist: did you mean 'photos'"):
        load("photo?crop=32")


def test_a_folder_that_does_not_exist_is_named_also_with_a_crop() -> None:
    with pytest.raises(FileNotFoundError, match="got 'photoz', which does not exist"):
        load("photoz?crop=32")


def test_a_name_in_capitals_is_explained() -> None:
    with pytest.raises(FileNotFoundError, match=r"got 'CIFAR10', .*did you mean 'cifar10'"):
        load("CIFAR10")


# -- image folders ------------------------------------------------------------------------------------------


def write_image(path: Path, pixels: np.ndarray) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_split_folder_holds_out_and_keeps_labels_alike(tmp_path: Path) -> None:
    for i in range(10):
        write_image(tmp_path / "train" / "cat" / f"{i}.png", random_images(1, 8, 8, 3, seed=i)[0])
        write_image(tmp_path / "train" / "ant" / f"{i}.png", random_images(1, 8, 8, 3, seed=i)[0])
    expected = write_image(tmp_path / "test" / "cat" / "x.png", random_images(1, 8, 8, 3, seed=99)[0])
    (tmp_path / "test" / "cat" / "notes.txt").write_text("not an image")
    with pytest.warns(UserWarning, match=r"1 file of another kind, not read \(.txt\)"):
        test = load(tmp_path)
    assert (test.classes, test.labels.tolist()) == (("ant", "cat"), [1])
    assert np.array_equal(test.images[0].permute(1, 2, 0).numpy(), expected)
    train, val = load(tmp_path, "train"), load(tmp_path, "val")
    assert (len(train), len(val)) == (18, 2)
    assert val.labels.tolist() == [int(i >= 10) for i in val.index.tolist()]


def test_flat_folder_may_have_a_class_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        write_image(tmp_path / name / "1.png", random_images(1, 8, 8)[0])
    data = load(tmp_path)
    assert data.classes == ("bus", "train")
    assert data.images.shape == (2, 3, 8, 8)
    with pytest.raises(ValueError, match="no splits"):
        load(tmp_path, "train")


@pytest.mark.filterwarnings("ignore:.*has only one class")
def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png", random_images(1, 8, 8, 3)[0])
    write_image(tmp_path / "a" / "2.png", np.full((16, 12, 3), 7, np.uint8))
    with pytest.raises(
        ValueError, match=r"got 8 x 8 in the first and 16 x 12 in .*2\.png: pass crop=224 \(PATH\?crop=224"
    ):
        load(tmp_path)
    assert load(tmp_path, size=(6, 4)).images.shape == (2, 3, 6, 4)
    assert (load(tmp_path, size=6).images[1] == 7).all()


@pytest.mark.filterwarnings("ignore:.*has only one class")
def test_folders_without_images_and_broken_images_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one subfolder of images per class"):
        load(tmp_path)
    write_image(tmp_path / "a" / "1.png", np.zeros((4, 4), np.uint16))
    with pytest.raises(
        ValueError, match=r"1 of 1 files .*a/1.png \(expected an image with 8 bits per channel, got mode I"
    ):
        load(tmp_path)
    (tmp_path / "a" / "1.png").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"expected images, got 1 of 1 files that cannot be read: .*1\.png \("):
        load(tmp_path)


def test_size_is_for_folders() -> None:
    with pytest.raises(
        ValueError, match="expected size= with a folder of images or a Hugging Face data set only, got it with builtin"
    ):
        load("builtin", size=16)


# -- the images inside the package --------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["val", "test"])
def test_builtin_images_are_the_stored_ones(split: str) -> None:
    data = load("builtin", split)
    assert data.fingerprint() == BUILTIN[split]
    assert data.images.shape == (1000, 3, 32, 32)
    assert data.classes[:2] == ("airplane", "automobile")


def test_builtin_positions_are_official() -> None:
    assert load("builtin").index.tolist() == list(range(1000))
    assert load("builtin").labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert load("builtin").images[0, :, 0, 0].tolist() == [158, 112, 49]
    assert load("builtin", "val").index.tolist() == validation_positions(50_000)[:1000].tolist()


def test_builtin_is_not_for_training() -> None:
    with pytest.raises(ValueError, match="it has test, val"):
        load("builtin", "train")


def test_a_damaged_package_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "cifar10.npz", **npz_arrays())
    make(source, tmp_path / "made", count=4, columns=2)
    monkeypatch.setattr("adaptive_smoothing.data.sources._builtin", lambda: tmp_path / "made")
    assert load("builtin").fingerprint() == load(source).take(4).fingerprint()
    Image.new("RGB", (64, 64)).save(tmp_path / "made" / "test.webp", lossless=True)
    with pytest.raises(ValueError, match="the installed package is damaged"):
        load("builtin")


def test_a_sheet_gives_its_images_back() -> None:
    images = random_images(6, 3, 32, 32)
    sheet = to_sheet(images, 3)
    assert sheet.shape == (64, 96, 3)
    assert np.array_equal(sheet[32:, 64:], images[5].transpose(1, 2, 0))
    assert np.array_equal(from_sheet(sheet, 6), images)
