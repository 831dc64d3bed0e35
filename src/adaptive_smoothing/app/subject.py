"""The model that the application shows, with the images to choose from and the names of its classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import torch
from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.export import input_shape
from adaptive_smoothing.mixing.loading import LoadedModel, check_classes
from adaptive_smoothing.mixing.transforms import without_transform
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.models.origin import origin
from adaptive_smoothing.settings.checks import warn_user
from adaptive_smoothing.tuning.curves import (
    VALIDATION,
    CleanAccuracyCurve,
    accuracy_curve,
    at_setting,
    current_setting,
)

# How many images of the data are offered.
GALLERY = 20
# Without images, the shift can be moved this many alpha_scales to both sides.
SCALES = 4
# The role of a classifier that is not a mixture.
ALONE = "model"


@dataclass(frozen=True)
class Dial:
    """What moves a mixture between g and h.

    Args:
        parameter: `alpha`, or `shift` for a learned alpha.
        start: the value that the mixture has.
        curve: clean accuracy on validation images as a function of the value, if it was stored with the mixture.
    """

    parameter: str
    start: float
    limits: tuple[float, float]
    curve: CleanAccuracyCurve | None = None

    @property
    def digits(self) -> int:
        """The decimal digits of a value that is shown."""
        return 3 if self.parameter == "alpha" else 2

    @property
    def step(self) -> float:
        return float(10**-self.digits)

    def rounded(self, setting: float) -> float:
        return round(setting, self.digits)

    def setting(self, rounded: float) -> float:
        """Return the setting that a rounded value stands for: the exact one of the mixture, if it is that."""
        return self.start if rounded == self.rounded(self.start) else rounded

    def text(self, setting: float) -> str:
        """Return `alpha = 0.850`, for example."""
        return f"{self.parameter} = {setting:.{self.digits}f}"


@dataclass(frozen=True, eq=False)
class Subject:
    """A classifier or a mixture to show.

    Args:
        title: its name.
        names: the names of the classifiers by role: g, h and mixture, or `model` for a classifier alone.
        classes: the names of the classes.
        shape: channels, height and width that a dropped image gets.
        gallery: images to choose from.
        dial: what moves the mixture; None if nothing does.
        lock: taps of features cannot be used by two threads at a time.
    """

    model: nn.Module
    title: str
    names: dict[str, str]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    device: str = "cpu"
    gallery: ImageData | None = None
    dial: Dial | None = None
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, loaded: LoadedModel, device: str = "cpu", data: ImageData | None = None) -> Subject:
        """Return a loaded model with images to choose from.

        Args:
            data: the gallery is selected from these; by default from the built-in images, if the model has 10 classes.
        """
        model = loaded.model
        if data is not None:
            check_classes(loaded.parts, data)
        chosen = _builtin(loaded) if data is None else data
        gallery = None if chosen is None else select(chosen).to(device)
        shape = _shape(model, gallery)
        probes = torch.rand(2, *shape, device=device) if gallery is None else gallery.take(2).floats()
        count = fp32_logits(model, probes).shape[1]  # raises an error for a model that cannot be shown
        classes = tuple(f"class {number}" for number in range(count)) if chosen is None else chosen.classes
        dial = _dial(loaded, gallery)
        return cls(model, loaded.short, _names(loaded), classes, shape, device, gallery, dial)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.names)

    @property
    def is_mixture(self) -> bool:
        return isinstance(self.model, MixedClassifier)

    def at(self, setting: float | None) -> nn.Module:
        """Return the model at an alpha or a shift; without a dial the model itself."""
        if self.dial is None or setting is None:
            return self.model
        assert isinstance(self.model, MixedClassifier)
        return at_setting(self.model, setting)


def select(data: ImageData, count: int = GALLERY) -> ImageData:
    """Return `count` images, with as many classes as possible: the first images of each class, sorted by class."""
    seen: dict[int, int] = {}
    ranks = []
    for position, label in enumerate(data.labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        ranks.append((seen[label], label, position))
    chosen = [(label, rank, position) for rank, label, position in sorted(ranks)[:count]]
    return data.take([position for *_, position in sorted(chosen)])


def _builtin(loaded: LoadedModel) -> ImageData | None:
    """Return the built-in images, or None if the model has other classes or takes no images of 32 x 32."""
    from adaptive_smoothing.data import datasets

    data = datasets.load("builtin", "test")
    try:
        check_classes(loaded.parts, data)
        fp32_logits(loaded.model, data.take(2).to(_device(loaded.model)).floats())
    except ValueError as error:
        warn_user(f"the application starts without images to choose from, and classes are numbers: {error}")
        return None
    return data


def _device(model: nn.Module) -> torch.device:
    return next(iter(model.parameters()), torch.empty(0)).device


def _shape(model: nn.Module, gallery: ImageData | None) -> tuple[int, int, int]:
    """Return the shape of images that a model takes: that of its data, or what the model declares."""
    if gallery is not None and gallery.name.partition("/")[0] != "builtin":
        return _three(gallery)
    try:
        return input_shape(model)
    except ValueError:  # its base classifiers declare different sizes
        if gallery is None:
            raise
        return _three(gallery)


def _three(data: ImageData) -> tuple[int, int, int]:
    _, channels, height, width = data.images.shape
    return channels, height, width


def _names(loaded: LoadedModel) -> dict[str, str]:
    """Return the names of the classifiers by role."""
    model = loaded.model
    if not isinstance(model, MixedClassifier):
        return {ALONE: next(iter(loaded.parts))}
    g, h = (without_transform(base) for base in (model.standard, model.robust))
    found = {role: (origin(base) or {"name": type(base).__name__})["name"] for role, base in (("g", g), ("h", h))}
    return {**found, "mixture": "of g and h" if loaded.folder is None else loaded.short}


def _dial(loaded: LoadedModel, gallery: ImageData | None) -> Dial | None:
    model = loaded.model
    if not isinstance(model, MixedClassifier):
        return None
    if isinstance(model.alpha, nn.Module) and not isinstance(model.alpha, Mixer):
        return None  # a module of the user's own, which has no shift
    parameter, start = "shift" if model.learns_alpha else "alpha", current_setting(model)
    curve = _stored_curve(loaded, parameter)
    if curve is not None:
        limits = curve.limits
    elif parameter == "alpha":
        limits = (0.0, 1.0)
    elif gallery is not None:
        limits = accuracy_curve(model, gallery).limits
    else:
        width = SCALES * model.alpha_scale.item()
        limits = (start - width, start + width)
    return Dial(parameter, start, (min(limits[0], start), max(limits[1], start)), curve)


def _stored_curve(loaded: LoadedModel, parameter: str) -> CleanAccuracyCurve | None:
    """Return the validation curve in the folder of a mixture, if it is about the parameter of its dial."""
    if loaded.folder is None or not (loaded.folder / VALIDATION).is_file():
        return None
    curve = CleanAccuracyCurve.load(loaded.folder / VALIDATION)
    return curve if curve.parameter == parameter else None
