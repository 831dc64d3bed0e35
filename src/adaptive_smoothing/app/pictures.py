"""Image files as tensors of the size that a model takes, and tensors as PNG."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from adaptive_smoothing.data.datasets import to_floats
from adaptive_smoothing.data.photographs import Framing, pixels_of

# A larger photograph takes seconds and hundreds of megabytes to decode.
MOST_PIXELS = 50_000_000


def read_image(path: str | Path, shape: tuple[int, int, int]) -> tuple[Tensor, list[str]]:
    """Return an image file as a tensor [1, C, H, W] in [0, 1], and what was changed, as sentences.

    An image of another size is cut to the proportions of `shape` at its centre, and resized.
    """
    try:
        with Image.open(path) as image:
            return _prepared(image, shape)
    except ValueError:
        raise
    except Exception as error:  # a damaged file can raise nearly any error
        found = f"{Path(path).name}, which is not one or is damaged"
        raise ValueError(f"expected an image such as PNG, JPEG or WebP, got {found}: choose another file") from error


def _prepared(image: Image.Image, shape: tuple[int, int, int]) -> tuple[Tensor, list[str]]:
    channels, height, width = shape
    if image.width * image.height > MOST_PIXELS:
        hint = "make it smaller first"
        found = f"{image.width} x {image.height}"
        raise ValueError(f"expected an image of at most {MOST_PIXELS / 1e6:.0f} million pixels, got {found}: {hint}")
    changes = []
    if getattr(image, "n_frames", 1) > 1:
        changes.append("Only the first picture of the animation is used.")
    if image.mode[0] not in "IF":  # `pixels_of` refuses these with an explanation
        upright = ImageOps.exif_transpose(image)
        image, made_opaque = _opaque(upright)
        changes += ["Transparent parts became white."] * made_opaque
    if channels == 3 and image.mode in ("1", "L"):
        changes.append("The image is grey: its three colour channels are equal.")
    elif channels == 1 and image.mode not in ("1", "L"):
        changes.append("The colours were dropped, because the model takes grey images.")
        image = image.convert("L")
    if image.size != (width, height):
        cut = "" if image.width * height == image.height * width else "cut at its centre and "
        changes.append(
            f"The image was {cut}resized from {image.width} x {image.height} to {width} x {height} pixels, "
            "the size that the model takes."
        )
    pixels = pixels_of(_fitted(image, width, height), Framing(), gray=channels == 1)
    return to_floats(torch.from_numpy(np.array(pixels)))[None], changes


def _fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """Return the centre of an image in another size. It is cut first: a long strip would become huge otherwise."""
    if image.mode[0] in "IF" or image.size == (width, height):
        return image
    if image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)


def _opaque(image: Image.Image) -> tuple[Image.Image, bool]:
    """Return an image on white paper in place of its transparent parts, and whether it has any."""
    if not image.has_transparency_data:
        return image, False
    colours = image.convert("RGBA")
    if colours.getchannel("A").getextrema()[0] == 255:
        return colours.convert("RGB"), False
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB"), True


def perturbation(clean: Tensor, attacked: Tensor, eps: float) -> tuple[Tensor, int]:
    """Return the perturbation as an image, grey where nothing changed, and how many times it is magnified."""
    factor = max(1, math.floor(0.5 / eps))
    return (0.5 + factor * (attacked - clean)).clamp(0, 1), factor


def data_uri(images: Tensor) -> str:
    """Return the first image as a PNG inside a `data:` address."""
    levels = (255 * images[0]).round().to(torch.uint8).cpu().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(levels.squeeze(2) if levels.shape[2] == 1 else levels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
