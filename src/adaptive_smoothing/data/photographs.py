"""Photographs of any size and format as uint8 arrays of one size, decoded in parallel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_smoothing.settings.checks import warn_user

if TYPE_CHECKING:
    from PIL import Image

# Resizing before a crop: the shorter edge is 256 for a crop of 224, as in most evaluations on ImageNet.
RESIZE_PER_CROP = 256 / 224
# Bytes of images from which the memory that they take is worth a warning, and files that an error names.
MUCH_MEMORY, NAMED = 4 << 30, 3
Size = int | tuple[int, int]


@dataclass(frozen=True)
class Framing:
    """How photographs of any size become images of one size.

    `resize` and `crop` do what Resize and CenterCrop of torchvision do: the shorter edge gets `resize` pixels, with
    antialiased bilinear interpolation, and the centre is cut out. One of them is enough: by default `resize` is 8/7 of
    `crop` (256 for 224), and `crop` is `resize`. `size` changes the proportions instead, and cuts nothing off.

    Args:
        size, crop: one side of a square, or (height, width).
    """

    size: Size | None = None
    resize: int | None = None
    crop: Size | None = None

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("resize", self.resize), ("crop", self.crop)):
            whole = value is None or _is_size(value)
            if not whole or (name == "resize" and isinstance(value, tuple)):
                hint = "the length of the shorter edge, such as 256" if name == "resize" else "224 or (height, width)"
                raise ValueError(f"expected {name} as a positive whole number, got {value!r}: pass {hint}")
        if self.size is not None and (self.resize or self.crop):
            hint = "size changes the proportions, resize and crop keep them"
            raise ValueError(f"expected size, or resize and crop, got both: {hint}")
        if self.resize and self.crop and max(_sides(self.crop)) > self.resize:
            raise ValueError(f"expected a crop of at most resize, got crop {self.crop} and resize {self.resize}")

    def __bool__(self) -> bool:
        return any((self.size, self.resize, self.crop))

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the image in the size that was asked for."""
        from PIL import Image

        if self.size is not None:
            return image.resize(_sides(self.size)[::-1], Image.Resampling.BICUBIC)
        if not self:
            return image
        height, width = _sides(self.crop or self.resize or 0)
        edge, short = self.resize or round(max(height, width) * RESIZE_PER_CROP), min(image.size)
        image = image.resize((edge * image.width // short, edge * image.height // short), Image.Resampling.BILINEAR)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))


def _is_size(value: Size) -> bool:
    sides = _sides(value)
    return len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)


def _sides(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def pixels_of(image: Image.Image, framing: Framing, *, gray: bool) -> np.ndarray:
    """Return a PIL image upright as CHW uint8 array: in RGB, or with one channel if it is gray and `gray` is true."""
    from PIL import ImageOps

    if image.mode[0] in "IF":
        hint = "its range is unknown; convert it to 8 bits (mode RGB or L) first"
        raise ValueError(f"expected an image with 8 bits per channel, got mode {image.mode}: {hint}")
    image = ImageOps.exif_transpose(image)
    if image.mode in ("P", "PA"):  # the transparency of a palette cannot be dropped directly
        image = image.convert("RGBA")
    image = framing(image.convert("L" if gray and image.mode in ("1", "L") else "RGB"))
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


@dataclass(frozen=True)
class Photographs:
    """Image files as one array, RGB and NCHW. They are selected like an array, and read by `numpy.asarray`."""

    paths: np.ndarray
    framing: Framing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: np.ndarray) -> Photographs:
        return Photographs(self.paths[rows], self.framing)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        shape = next((pixels.shape for path in self.paths if isinstance(pixels := self._read(path), np.ndarray)), (0,))
        images = np.empty((len(self), *shape), np.uint8)
        warn_memory(images)
        with ThreadPoolExecutor() as pool:  # decoding and resizing release the lock of Python
            found = list(pool.map(self._store, self.paths, images))
        self._check_readable({path: error for path, error in zip(self.paths, found, strict=True) if error is not None})
        return images

    def _read(self, path: Path) -> np.ndarray | Exception:
        from PIL import Image

        try:
            with Image.open(path) as image:
                return pixels_of(image, self.framing, gray=False)
        except Exception as error:  # a damaged file can raise nearly any error
            return error

    def _store(self, path: Path, row: np.ndarray) -> Exception | None:
        """Read an image into its row of the array, and return what prevents it."""
        pixels = self._read(path)
        if isinstance(pixels, Exception):
            return pixels
        if pixels.shape != row.shape:
            return OtherSizeError(pixels.shape, row.shape)
        row[:] = pixels
        return None

    def _check_readable(self, errors: dict[Path, Exception]) -> None:
        """Raise an error that names the files that cannot be read, or else two of different sizes."""
        broken = {path: error for path, error in errors.items() if not isinstance(error, OtherSizeError)}
        if broken:
            named = "; ".join(f"{path} ({error})" for path, error in list(broken.items())[:NAMED])
            more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
            count = f"{len(broken)} of {len(self)} files that cannot be read"
            raise ValueError(f"expected images, got {count}: {named}{more}; repair or delete them")
        for path, error in errors.items():
            raise ValueError(different_sizes(f"{error} in {path}"))


class OtherSizeError(ValueError):
    """An image has another size than the first one."""

    def __init__(self, found: tuple[int, ...], first: tuple[int, ...]) -> None:
        here, there = (f"{height} x {width}" for _, height, width in (found, first))
        super().__init__(f"{there} in the first and {here}")


def different_sizes(found: str) -> str:
    """Return the error for images of several sizes."""
    hint = "pass crop=224 (PATH?crop=224 as --data) to resize them and cut out the centre, or size= to stretch them"
    return f"expected images of one size, got {found}: {hint}"


def warn_memory(images: np.ndarray) -> None:
    """Say how much memory the images take, if it is much."""
    if images.nbytes >= MUCH_MEMORY:
        shape = " x ".join(map(str, images.shape[1:]))
        took = f"{len(images):,} images of {shape} take {images.nbytes / 2**30:.1f} GiB of memory"
        warn_user(f"{took}: pass images= (--images) for fewer of them, or a smaller crop")
