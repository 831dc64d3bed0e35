import numpy as np
import pytest
import torch
from PIL import Image

from adaptive_smoothing.app import pictures
from adaptive_smoothing.app.pictures import perturbation, read_image

SHAPE = (3, 32, 32)


def stored(folder, image: Image.Image, name: str = "image.png"):
    image.save(folder / name)
    return folder / name


def test_an_image_of_the_right_size_is_read_as_it_is(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    found, changes = read_image(stored(tmp_path, Image.fromarray(levels)), SHAPE)
    torch.testing.assert_close(found[0], torch.from_numpy(levels).permute(2, 0, 1) / 255)
    assert changes == []


def test_the_centre_of_another_size_is_resized(tmp_path):
    image = Image.new("RGB", (200, 100), "red")
    image.paste("blue", (50, 0, 150, 100))
    found, changes = read_image(stored(tmp_path, image), SHAPE)
    assert found.shape == (1, *SHAPE)
    assert (found[0, 2] - found[0, 0]).min() > 0.7 and found[0, 2, :, 1:-1].min() == 1  # red was cut off
    assert changes == [
        "The image was cut at its centre and resized from 200 x 100 to 32 x 32 pixels, the size that the model takes."
    ]


def test_a_long_strip_does_not_become_huge(tmp_path):
    assert read_image(stored(tmp_path, Image.new("RGB", (1, 60_000))), SHAPE)[0].shape == (1, *SHAPE)


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_images_have_three_equal_channels(tmp_path, mode: str):
    found, changes = read_image(stored(tmp_path, Image.new(mode, (32, 32), 1)), SHAPE)
    assert found.shape == (1, *SHAPE) and torch.equal(found[:, 0], found[:, 2])
    assert changes == ["The image is grey: its three colour channels are equal."]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_become_white(tmp_path, mode: str):
    image = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    image = image.quantize() if mode == "P" else image.convert(mode)
    found, changes = read_image(stored(tmp_path, image), SHAPE)
    assert image.mode == mode and found.min() == 1 and changes == ["Transparent parts became white."]


def test_colours_are_dropped_for_a_model_of_grey_images(tmp_path):
    found, changes = read_image(stored(tmp_path, Image.new("RGB", (28, 28), "red")), (1, 28, 28))
    assert found.shape == (1, 1, 28, 28) and "colours were dropped" in changes[0]


def test_what_is_not_an_image_is_refused(tmp_path, monkeypatch):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"expected an image .*, got notes\.png, which is not one or is damaged"):
        read_image(tmp_path / "notes.png", SHAPE)
    whole = stored(tmp_path, Image.effect_noise((64, 64), 50), "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"got cut\.png, which is not one or is damaged"):
        read_image(tmp_path / "cut.png", SHAPE)
    with pytest.raises(ValueError, match="8 bits per channel, got mode I;16"):
        read_image(stored(tmp_path, Image.new("I;16", (32, 32)), "deep.png"), SHAPE)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 1_000_000)
    with pytest.raises(ValueError, match="at most 1 million pixels, got 2000 x 1000: make it smaller"):
        read_image(stored(tmp_path, Image.new("1", (2000, 1000)), "huge.png"), SHAPE)


def test_a_perturbation_is_magnified_to_the_whole_range():
    clean = torch.full((1, 3, 2, 2), 0.5)
    shown, factor = perturbation(clean, clean + 8 / 255, 8 / 255)
    assert factor == 15
    torch.testing.assert_close(shown, torch.full_like(clean, 0.5 + 15 * 8 / 255))
    torch.testing.assert_close(perturbation(clean, clean, 8 / 255)[0], clean)
