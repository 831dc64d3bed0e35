"""Folders of images are read as torchvision's ImageFolder reads them, in any usual layout."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from adaptive_smoothing.data.datasets import load
from adaptive_smoothing.data.image_folder import _files, is_image
from adaptive_smoothing.mixing.loading import check_classes


def write(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (level, level, level)).save(path)


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Twelve images, whose level is their position in the order of torchvision."""
    names = ["Zebra/1", "Zebra/10", "Zebra/2", "ant/a", "ant/more/b", "ant/more/c", "bee/0", "bee/1", "bee/2"]
    for level, name in enumerate([*names, "bee/3", "bee/4", "bee/5"]):
        write(tmp_path / "animals" / f"{name}.png", level)
    for hidden in ("._1.png", ".DS_Store"):
        (tmp_path / "animals" / "ant" / hidden).write_bytes(b"not an image")
    (tmp_path / "animals" / ".cache").mkdir()
    return tmp_path / "animals"


def test_files_and_classes_are_in_the_order_of_torchvision(animals: Path) -> None:
    folder = pytest.importorskip("torchvision.datasets").ImageFolder
    data = load(animals)
    (animals / "ant" / "._1.png").unlink()  # torchvision would read this file
    (animals / ".cache").rmdir()
    expected = folder(str(animals))
    assert data.classes == tuple(expected.classes) == ("Zebra", "ant", "bee")
    assert data.labels.tolist() == expected.targets
    assert data.images[:, 0, 0, 0].tolist() == [image.getpixel((0, 0))[0] for image, _ in expected] == list(range(12))


def test_a_number_of_images_is_evenly_spaced_over_the_classes(animals: Path) -> None:
    data = load(animals, images=4)
    assert data.index.tolist() == data.images[:, 0, 0, 0].tolist() == [0, 3, 6, 9]
    assert data.labels.tolist() == [0, 1, 2, 2]
    assert len(load(animals, images=100)) == 12
    assert load("builtin", images=5).index.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="expected images of at least 1, got 0"):
        load(animals, images=0)


@pytest.mark.parametrize(
    "names", [("training", "validation", "testing"), ("train", "valid", "test"), ("Train", "val", "Test")]
)
def test_splits_may_have_any_usual_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    for level, name in enumerate(names):
        write(tmp_path / name / "ant" / "1.png", level)
        write(tmp_path / name / "bee" / "1.png", level)
    for level, split in enumerate(("train", "val", "test")):
        assert (load(tmp_path, split).images == level).all()


def test_only_the_files_that_are_used_are_read(animals: Path) -> None:
    write(animals / "train" / "ant" / "1.png", 7)
    write(animals / "train" / "bee" / "1.png", 7)
    for number in range(2, 10):
        (animals / "train" / "ant" / f"{number}.png").write_bytes(b"nonsense")
    assert (load(animals, "train", images=1).images == 7).all()


def test_labels_follow_the_classes_of_the_model(animals: Path) -> None:
    order = ["bee", "wasp", "ant", "Zebra"]
    data = load(animals, classes=order)
    assert data.classes == tuple(order)
    assert data.labels.tolist() == [3] * 3 + [2] * 3 + [0] * 6
    (animals / "order.txt").write_text("bee\nwasp\n\nant\nZebra\n")
    for name in (f"{animals}?classes={animals}/order.txt", f"{animals}?classes=order.txt"):
        assert torch.equal(load(name).labels, data.labels)
    with pytest.raises(
        ValueError,
        match=r"the 3 classes to include those of animals/test, got 'Zebra': rename .*, or add the class; did you",
    ):
        load(animals, classes=["ant", "bee", "Zebras"])
    with pytest.raises(FileNotFoundError, match="expected a file with one class per line"):
        load(animals, classes="missing.txt")


def test_folders_without_images_are_no_classes(animals: Path) -> None:
    for name in ("__MACOSX", "empty", "phone"):
        (animals / name).mkdir()
    (animals / "__MACOSX" / "._1.png").write_bytes(b"")
    (animals / "ant" / ".hidden").mkdir()
    write(animals / "ant" / ".hidden" / "1.png", 0)
    empty = r"animals has 3 folders without images, which are not classes \(__MACOSX, empty, phone\)"
    with pytest.warns(UserWarning, match=empty + "$"):  # nothing to convert
        data = load(animals)
    assert data.classes == ("Zebra", "ant", "bee") and len(data) == 12

    (animals / "ant" / "notes.txt").write_bytes(b"")
    (animals / "phone" / "1.HEIC").write_bytes(b"")
    others = r" and 2 files of another kind, not read \(.txt, .HEIC\); convert those that are photographs to JPEG"
    with pytest.warns(UserWarning, match=empty + others) as seen:
        assert len(load(animals)) == 12
    assert len(seen) == 1


def test_a_class_without_images_in_this_split_keeps_its_number(tmp_path: Path) -> None:
    for name in ("train/ant", "train/bee", "test/bee"):
        write(tmp_path / name / "1.png", 0)
    (tmp_path / "test" / "ant").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(tmp_path, "test")
    assert data.classes == ("ant", "bee") and data.labels.tolist() == [1]


def test_loops_of_links_are_not_followed(animals: Path) -> None:
    (animals / "ant" / "up").symlink_to("..")
    (animals / "ant" / "more" / "here").symlink_to(".")
    (animals / "all").symlink_to(".")
    (animals / "wasp").symlink_to("bee")
    with pytest.warns(UserWarning, match=r"1 folder without images, which is not a class \(all\)"):
        data = load(animals)
    assert data.classes == ("Zebra", "ant", "bee", "wasp")
    assert data.labels.bincount().tolist() == [3, 3, 6, 6]


@pytest.mark.parametrize("order", [list, reversed])
def test_a_folder_is_read_once_whatever_the_order_of_the_file_system(animals: Path, monkeypatch, order) -> None:
    (animals / "ant" / "again").symlink_to("more")  # sorted before it
    (animals / "ant" / "last" / "inside").mkdir(parents=True)
    (animals / "ant" / "last" / "inside" / "once more").symlink_to(animals / "ant" / "more")
    walk = os.walk

    def shuffled(folder: Path, followlinks: bool) -> Iterator[tuple[str, list[str], list[str]]]:
        for root, folders, files in walk(folder, followlinks=followlinks):
            folders[:] = order(sorted(folders))
            yield root, folders, files

    monkeypatch.setattr(os, "walk", shuffled)
    inside = [path.relative_to(animals / "ant").as_posix() for path in _files(animals / "ant") if is_image(path)]
    assert inside == ["a.png", "again/b.png", "again/c.png"]


def test_one_class_is_announced(tmp_path: Path) -> None:
    write(tmp_path / "ant" / "1.png", 0)
    with pytest.warns(UserWarning, match="has only one class, ant: .*expected one subfolder per class"):
        data = load(tmp_path)
    assert data.classes == ("ant",) and data.labels.tolist() == [0]


def test_options_may_be_part_of_the_name(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).save(
            tmp_path / name / "1.png"
        )
    assert load(f"{tmp_path}?resize=16&crop=12").fingerprint() == load(tmp_path, resize=16, crop=12).fingerprint()
    assert load(f"{tmp_path}?size=8x10").images.shape == (2, 3, 8, 10)
    for name, message in {
        "?crp=12": r"unknown option 'crp' .* did you mean 'crop'\?",
        "?crop=12px": "expected crop as 224, or as 224x192 .* got '12px'",
        "?label=x": "expected label= with a Hugging Face data set only",
        "?resize=8x8": "expected resize as a positive whole number",
    }.items():
        with pytest.raises(ValueError, match=message):
            load(f"{tmp_path}{name}")
    with pytest.raises(ValueError, match="expected crop once"):
        load(f"{tmp_path}?crop=12", crop=12)


def test_a_path_with_a_question_mark_is_a_path(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        write(tmp_path / "what?" / name / "1.png", 5)
    assert len(load(str(tmp_path / "what?"))) == 2


def test_a_model_with_more_classes_needs_their_names(animals: Path, linear: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=r"the 3 classes of animals/test, got m with 4: .*if Zebra, ant, bee are some of"
    ):
        check_classes({"m": linear}, load(f"{animals}?size=8"))
    check_classes({"m": linear}, load(animals, size=8, classes=["bee", "wasp", "ant", "Zebra"]))
