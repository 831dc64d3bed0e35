"""Pictures: some images of a run with their attacked versions, as bytes, which the page of the run shows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.outputs import ATTACKED, CLEAN
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.noise import WORD, fold, keyed_seed
from adaptive_smoothing.results import read_rows, write_rows
from adaptive_smoothing.runs.folder import PICTURES

# The longest side of a picture, in pixels. Larger images are reduced by a whole factor.
SIDE = 112
# The most bytes that the floats of all pictures may take while a run is going on.
MOST_BYTES = 64 << 20
# Beginnings of the names of arrays in the file.
VERSION, PROBABILITIES = "version.", "probabilities."


@dataclass(frozen=True)
class Pictures:
    """Some images of a run, as bytes.

    Args:
        rows: their positions in `rows.npz`.
        versions: uint8 [N, H, W, C] by name: the `clean` images, the `attacked` ones, ...
        factor: by how much images were reduced to become pictures.
        classes: names of the classes.
        probabilities: [N, classes] of a base classifier on a version, by name, such as `clean_g`. Empty if `rows.npz`
            has them.
    """

    rows: np.ndarray
    versions: dict[str, np.ndarray]
    factor: int = 1
    classes: tuple[str, ...] = ()
    probabilities: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, verdict: Verdict, data: ImageData) -> Pictures | None:
        """Return the pictures of a run on these data, or None if it kept none."""
        if verdict.pictured is None or not len(verdict.pictured):
            return None
        rows = pictured_rows(data, len(verdict.pictured))
        clean = data.take(rows).floats().cpu()
        return cls.made(rows, {CLEAN: clean, ATTACKED: verdict.pictured.cpu()}, data.classes)

    @classmethod
    def made(cls, rows: Tensor, versions: dict[str, Tensor], classes: tuple[str, ...]) -> Pictures:
        """Return pictures of images that are floats [N, C, H, W] in [0, 1]."""
        factor = -(-max(versions[CLEAN].shape[2:]) // SIDE)
        return cls(rows.numpy(), {name: _as_bytes(each, factor) for name, each in versions.items()}, factor, classes)

    def save(self, folder: str | Path) -> None:
        """Write the pictures to a run folder."""
        versions = {f"{VERSION}{name}": each for name, each in self.versions.items()}
        shares = {f"{PROBABILITIES}{name}": each.astype(np.float16) for name, each in self.probabilities.items()}
        about = {"factor": np.array(self.factor), "classes": np.array(self.classes, dtype=np.str_)}
        write_rows(Path(folder) / PICTURES, {"row": self.rows, **versions, **shares, **about})

    @classmethod
    def load(cls, folder: str | Path) -> Pictures | None:
        """Return the pictures in a run folder, or None if it has none."""
        if not (path := Path(folder) / PICTURES).is_file():
            return None
        found = read_rows(path)

        def named(prefix: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(prefix): each for name, each in found.items() if name.startswith(prefix)}

        classes = tuple(map(str, found["classes"]))
        return cls(found["row"], named(VERSION), int(found["factor"]), classes, named(PROBABILITIES))

    def take(self, which: np.ndarray | slice) -> Pictures:
        """Return some of the pictures."""
        versions, shares = (
            {name: each[which] for name, each in table.items()} for table in (self.versions, self.probabilities)
        )
        return replace(self, rows=self.rows[which], versions=versions, probabilities=shares)


def pictured_rows(data: ImageData, wanted: int) -> Tensor:
    """Return the positions of the images of a run that become pictures, in ascending order.

    They are those with the smallest random keys, and the key of an image is always the same. So runs on the same images
    have the same pictures, and a part of the images has those pictures that are in it.
    """
    channels = data.images.shape[1]
    most = MOST_BYTES // (4 * data.images[0].numel()) if len(data) and channels in (1, 3) else 0
    index = data.index.cpu()
    chance = fold(torch.full_like(index, keyed_seed(0, "pictures") & WORD), index)
    return chance.argsort(stable=True)[: min(wanted, most)].sort().values


def _as_bytes(images: Tensor, factor: int) -> np.ndarray:
    """Return floats [N, C, H, W] in [0, 1] as bytes [N, H, W, C], reduced by a whole factor."""
    small = avg_pool2d(images, factor) if factor > 1 else images
    return (small * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
