"""Options of `load`, as arguments or after the question mark of a name: `photos?crop=224`, `hf:mnist?label=digit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from adaptive_smoothing.data.photographs import Framing, Size
from adaptive_smoothing.settings.checks import check_list, parse_flag, parse_query, parse_size
from adaptive_smoothing.settings.tables import read_text


@dataclass(frozen=True)
class DataOptions:
    """How to read images. `classes` applies to all data, the sizes to image files, the others to Hugging Face."""

    classes: Sequence[str] | str | Path | None = None
    size: Size | None = None
    resize: int | None = None
    crop: Size | None = None
    image: str | None = None
    label: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    round: bool | None = None

    @property
    def framing(self) -> Framing:
        return Framing(self.size, self.resize, self.crop)

    def check_only(self, allowed: tuple[str, ...], what: str) -> None:
        """Raise an error for options that do not apply to this kind of data."""
        for name in (field.name for field in fields(self)):
            if getattr(self, name) is not None and name not in allowed:
                where = "a Hugging Face data set" if name in HUB else "a folder of images or a Hugging Face data set"
                hint = "resize in the first layers of the model instead" if name in SIZES else "leave it out"
                raise ValueError(f"expected {name}= with {where} only, got it with {what}: {hint}")


SIZES = ("size", "resize", "crop")
HUB = ("image", "label", "config", "split", "revision", "round")
NAMES = tuple(field.name for field in fields(DataOptions))


def split_name(name_or_path: str | Path, given: DataOptions) -> tuple[str, DataOptions]:
    """Return the name without options, and the options in it together with those given as arguments."""
    text = str(name_or_path)
    if "?" not in text or Path(text).expanduser().exists():
        return text, given
    name, texts = parse_query(text, NAMES)
    for key in texts:
        if getattr(given, key) is not None:
            raise ValueError(f"expected {key} once, got it in {text!r} and as an argument: leave one out")
    return name, replace(given, **{key: _value(key, value) for key, value in texts.items()})


def _value(key: str, text: str) -> Any:
    """Return the value of an option that was given as text."""
    if key == "round":
        return parse_flag(key, text)
    return parse_size(key, text) if key in SIZES else text


def class_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Return names of classes as a tuple, or raise an error for anything but a list of them."""
    check_list("names", classes=classes)
    return tuple(classes)


def without_repetitions(names: tuple[str, ...], where: str = "") -> tuple[str, ...]:
    """Return the names of classes, or raise an error if two are equal: the label of a folder would be either."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        found = f"{', '.join(map(repr, repeated))} more than once{where}"
        raise ValueError(f"expected different names of classes, got {found}: give each class its own name")
    return names


def class_list(classes: Sequence[str] | str | Path, folder: Path) -> tuple[str, ...]:
    """Return names of classes, or read them from a file: one per line, here or in the folder of the images."""
    if not isinstance(classes, str | Path):
        return without_repetitions(class_names(classes))
    for path in (Path(classes).expanduser(), folder / classes):
        if path.is_file():
            names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
            return without_repetitions(names, f" in {path}")
    raise FileNotFoundError(
        f"expected a file with one class per line as classes=, got {str(classes)!r}: check the path"
    )
