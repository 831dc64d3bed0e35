"""Photographs are turned upright, converted, resized and cropped as torchvision does it; broken files are named."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adaptive_smoothing.data import photographs
from adaptive_smoothing.data.datasets import load
from adaptive_smoothing.data.photographs import Framing, pixels_of


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture without sharp edges, so that interpolation matters but noise does not."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(("width", "height"), [(60, 40), (41, 67), (30, 30), (33, 201)])
def test_resize_and_crop_are_those_of_torchvision(width: int, height: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = photograph(width, height)
    for resize, crop in ((32, 28), (25, 24), (32, (20, 31))):
        expected = transforms.CenterCrop(crop)(transforms.Resize(resize)(image))
        assert np.array_equal(np.asarray(Framing(resize=resize, crop=crop)(image)), np.asarray(expected))


def test_one_of_resize_and_crop_is_enough() -> None:
    image = photograph(60, 40)
    for short, long in ((Framing(crop=28), Framing(resize=32, crop=28)), (Framing(resize=32), Framing(None, 32, 32))):
        assert np.array_equal(np.asarray(short(image)), np.asarray(long(image)))
    assert Framing(crop=224) and not Framing()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "expected resize as a positive whole number, got 0: pass the length of the shorter edge"),
        ({"resize": (256, 256)}, "expected resize as a positive whole number"),
        ({"crop": ()}, r"expected crop as a positive whole number, got \(\): pass 224 or \(height, width\)"),
        ({"crop": 22.4}, "expected crop as a positive whole number"),
        ({"size": 8, "crop": 4}, "expected size, or resize and crop, got both"),
        ({"resize": 200, "crop": 224}, "expected a crop of at most resize, got crop 224 and resize 200"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Framing(**options)


def test_every_kind_of_file_becomes_an_upright_rgb_image(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (204, 0, 0))
    turned = Image.new("RGB", (4, 4), (204, 0, 0))
    turned.paste((0, 0, 204), (0, 0, 4, 2))  # blue above; rotated by 90 degrees, blue is on the right
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = {
        "gray": red.convert("L"),
        "rgba": red.convert("RGBA"),
        "palette": red.convert("P"),
        "cmyk": red.convert("CMYK"),
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    turned.save(tmp_path / "b" / "turned.png", exif=exif)
    for name, image in kinds.items():
        image.save(tmp_path / "a" / f"{name}.{'tif' if name == 'cmyk' else 'png'}")
    clear = red.convert("P")
    clear.save(tmp_path / "a" / "transparent.png", transparency=bytes([0] * 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(tmp_path)
    *others, upright = data.images
    assert upright[:, 0].T.tolist() == [[204, 0, 0], [204, 0, 0], [0, 0, 204], [0, 0, 204]]
    # in the order of names: cmyk, gray, palette, rgba, transparent
    assert [image[:, 0, 0].tolist() for image in others] == [[204, 0, 0], [61, 61, 61], *[[204, 0, 0]] * 3]


def test_images_of_one_mode_keep_their_channel_when_asked() -> None:
    assert pixels_of(Image.new("L", (5, 4)), Framing(), gray=True).shape == (1, 4, 5)
    assert pixels_of(Image.new("L", (5, 4)), Framing(crop=2), gray=False).shape == (3, 2, 2)


def test_all_broken_files_are_counted_and_some_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        photograph(9, 9).save(tmp_path / name / "0.png")
    whole = tmp_path / "a" / "whole.jpg"
    photograph(40, 40).save(whole)
    (tmp_path / "a" / "cut.jpg").write_bytes(whole.read_bytes()[:-300])
    whole.unlink()
    for number in range(4):
        (tmp_path / "b" / f"{number + 1}.png").write_bytes(b"nonsense")
    with pytest.raises(
        ValueError, match=r"got 5 of 7 files that cannot be read: .*cut.jpg \(.*\); .*1.png .*and 2 more"
    ):
        load(tmp_path)


def test_much_memory_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "MUCH_MEMORY", 2 * 3 * 8 * 8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        photograph(20, 30).save(tmp_path / name / "0.png")
    with pytest.warns(UserWarning, match=r"2 images of 3 x 8 x 8 take 0.0 GiB of memory: pass images="):
        load(tmp_path, crop=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path, crop=8, images=1).images.dtype == torch.uint8
