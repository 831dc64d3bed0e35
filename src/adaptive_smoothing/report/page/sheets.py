"""Data for the scripts of a page: arrays and sheets of pictures as base64 text."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image

# The largest probability as a whole number of 16 bits.
FULL = 65535


def array(values: np.ndarray) -> dict[str, Any]:
    """Return an array for `readArray` of data.js: its type, and its bytes in little-endian order."""
    if values.dtype == bool:
        return {"type": "bits", "length": len(values), "bytes": text(np.packbits(values, bitorder="little").tobytes())}
    kinds = {"f": ("<f4",), "u": ("<u2", "<u4"), "i": ("<i2", "<i4")}[values.dtype.kind]
    short = values.dtype.kind == "f" or values.max(initial=0) <= np.iinfo(kinds[0]).max
    found = np.ascontiguousarray(values).astype(kinds[0] if short else kinds[1])
    return {"type": found.dtype.str[1:], "length": found.size, "bytes": text(found.tobytes())}


def probabilities(values: np.ndarray) -> dict[str, Any]:
    """Return probabilities in 16 bits each; their error is below 1e-5."""
    return array((values.astype(np.float64).clip(0, 1) * FULL).round().astype(np.uint16))


def sheet(pictures: np.ndarray) -> str:
    """Return pictures [N, H, W, C] side by side, as the address of one lossless image."""
    count, height, width, channels = pictures.shape
    columns = sheet_columns(count)
    rows = -(-count // columns)
    filled = np.zeros((rows * columns, height, width, channels), np.uint8)
    filled[:count] = pictures
    table = filled.reshape(rows, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    pixels = table.reshape(rows * height, columns * width, channels)
    buffer = io.BytesIO()
    Image.fromarray(pixels if channels == 3 else pixels[..., 0]).save(buffer, "webp", lossless=True, quality=60)
    return f"data:image/webp;base64,{text(buffer.getvalue())}"


def sheet_columns(count: int) -> int:
    """Return how many pictures are side by side in a sheet."""
    return max(1, math.ceil(math.sqrt(count)))


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()
