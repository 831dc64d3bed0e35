"""Data sets of Hugging Face, through the package `datasets`, which is imported only if one of them is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.data.items import ItemKeys, Levels, chw, label_number, stack_images
from adaptive_smoothing.data.photographs import Framing
from adaptive_smoothing.data.sources import SplitArrays, find_splits, whole_split

PREFIX = "hf:"


@dataclass(frozen=True)
class HubDataset:
    """A data set of the Hugging Face hub, or a local folder of one.

    Args:
        config: which of its configurations to load; None: the only one.
        split: the name of the only split to use, also a part such as `train[:1000]`; None: all splits.
        revision: branch, tag or commit; None: the newest.
        round: round floats to the nearest of the 256 levels.
    """

    path: str
    keys: ItemKeys
    framing: Framing
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    round: bool = False

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def splits(self) -> tuple[str, ...]:
        return ("all",) if self.split else tuple(self._names) or ("all",)

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names of the splits in the data set, by split."""
        if self._saved is not None:
            return find_splits(self._saved if isinstance(self._saved, dict) else ())
        options = {"config_name": self.config, "revision": self.revision}
        return find_splits(self._call("get_dataset_split_names", self.path, **options))

    @cached_property
    def _saved(self) -> Any:
        """The data set that `save_to_disk` wrote into a local folder, or None."""
        folder = Path(self.path).expanduser()
        if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return None
        return self._call("load_from_disk", str(folder))

    def read(self, split: str) -> SplitArrays:
        name = self.split or ("train" if split == "all" else self._names[split])
        if self._saved is None:
            table = self._call("load_dataset", self.path, self.config, split=name, revision=self.revision)
        else:
            table = self._saved[name] if isinstance(self._saved, dict) else self._saved
        image, label = self.keys.found_in(table.features)
        names = getattr(table.features[label], "names", None)
        labels = np.array([self._label(value) for value in table[label]], np.int64)
        classes = names or [str(number) for number in range(labels.max(initial=0) + 1)]
        images = HubImages(self.name, table, image, self.framing, self.round)
        return whole_split(images, labels, tuple(classes), classes_known=bool(names))

    def _label(self, value: Any) -> int:
        if isinstance(value, str):
            hint = "call class_encode_column on it, and pass it to ads.from_dataset"
            raise ValueError(f"expected whole numbers as labels of {self.path}, got {value!r}: {hint}")
        if (number := label_number(value)) < 0:
            raise ValueError(f"expected labels from 0 in {self.path}, got {number}: this split has none; use another")
        return number

    def _call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of `datasets`, and explain its errors."""
        try:
            import datasets
        except ImportError as error:
            hint = "run pip install 'adaptive-smoothing[datasets]'"
            raise ImportError(f"expected the package datasets for {PREFIX}{self.path}, got {error}: {hint}") from error
        try:
            return getattr(datasets, function)(*arguments, **options)
        except Exception as error:  # it raises many kinds, also of other packages
            hint = "check the name, ?config= and ?split=, and the connection"
            message = f"expected the data set {self.path} of Hugging Face, got {type(error).__name__}: {error}; {hint}"
            raise ValueError(message) from error


@dataclass(frozen=True)
class HubImages:
    """The images of a table of Hugging Face. They are selected like an array, and read by `numpy.asarray`."""

    name: str
    table: Any
    image: str
    framing: Framing
    round: bool

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: np.ndarray) -> HubImages:
        return replace(self, table=self.table.select(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        levels = Levels(self.round)
        images = stack_images([chw(item[self.image], self.framing, levels) for item in self.table]).numpy()
        levels.report(self.name)
        return images
