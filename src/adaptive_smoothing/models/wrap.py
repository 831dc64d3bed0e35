"""`wrap` turns a third-party model into a classifier: it adds the missing first layers and checks the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.models import contract
from adaptive_smoothing.models.fit import warn_log_probabilities
from adaptive_smoothing.models.resnet import Normalize
from adaptive_smoothing.noise import generator
from adaptive_smoothing.settings.checks import warn_user

# The number of images on which `wrap` tests a model.
PROBES = 4

Output = str | int | Callable[[Any], Tensor]
Channels = float | Sequence[float]


class Resize(nn.Module):
    """Differentiable bilinear resizing with antialiasing, as in image libraries."""

    MODE: ClassVar = "bilinear"

    def __init__(self, size: int | tuple[int, int]) -> None:
        super().__init__()
        sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            hint = "leave the channels out, for example size=224"
            raise ValueError(f"expected size as one positive whole number or as (height, width), got {size!r}: {hint}")
        self.size = sides

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[-2:]) == self.size:
            return images
        return F.interpolate(images, self.size, mode=self.MODE, align_corners=False, antialias=True)


class Preprocessing(TypedDict, total=False):
    """Options of `wrap` that a file can hold."""

    mean: Channels
    std: Channels
    size: int | tuple[int, int]


class Classifier(nn.Module):
    """A classifier made by `wrap`: resizing and normalisation of NCHW images in [0, 1], then `model`.

    Args:
        shape: the shape of images on which it was tested.
    """

    log_probabilities_known = True  # `wrap` has warned about them

    def __init__(
        self,
        model: nn.Module,
        *,
        first: nn.Module,
        num_classes: int,
        output: Output | None = None,
        shape: tuple[int, ...] = (3, 32, 32),
    ) -> None:
        super().__init__()
        self.first, self.model, self.output, self.num_classes, self.shape = first, model, output, num_classes, shape

    def forward(self, images: Tensor) -> Tensor:
        contract.guard_images(images)
        # Images are normalised here, so that a `Classifier` inside must not check their values.
        with contract.trusted_images():
            output = self.model(self.first(images))
        logits = pick_logits(output, self.output)
        contract.check_logit_form(logits, images)
        return logits


def wrap(
    model: nn.Module,
    *,
    mean: Channels | None = None,
    std: Channels | None = None,
    size: int | tuple[int, int] | None = None,
    output: Output | None = None,
    images: Tensor | None = None,
    shape: tuple[int, int, int] = (3, 32, 32),
) -> Classifier:
    """Return a classifier made from any model, or raise an error that explains why that is not possible.

    The model is put in eval mode and frozen in place, then tested on `images` or on random ones of `shape`.

    Args:
        mean, std: the normalisation that the model was trained with, for images in [0, 1].
        size: the size of the images that the model accepts; others are resized.
        output: the name or index of the logits in a structured output, or a function that returns them.
        images: images to test the model on.
        shape: the shape of the random images.

    Examples:
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
        >>> model = ads.wrap(network, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), size=8)
        >>> model(images).shape, model.num_classes
        (torch.Size([4, 5]), 5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: put the function in a module")
    contract.freeze(model)
    if isinstance(model, Classifier) and all(option is None for option in (mean, std, size, output)):
        return model
    declared = getattr(model, "pretrained_cfg", None)
    if mean is None and std is None and isinstance(declared, Mapping) and {"mean", "std"} <= declared.keys():
        found = f"this model declares mean={declared['mean']} and std={declared['std']}, ads.wrap got neither"
        warn_user(f"{found}: pass them, or mean=0, std=1 if it was trained on plain [0, 1] images")
    probes = _probe_images(model, images, shape)
    wanted = torch.float32 if images is None else images.dtype
    if probes.dtype != wanted:
        hint = "call model.float(), or pass images= of this dtype if all images will have it"
        hint = "pass float32 images" if probes.dtype == torch.float32 else hint
        raise ValueError(f"expected a model for images in {wanted}, got weights in {probes.dtype}: {hint}")
    first = first_layers(mean, std, size, probes.shape[1]).to(probes.device, probes.dtype)
    tested = tuple(probes.shape[1:])
    classifier = Classifier(model, first=first, num_classes=0, output=output, shape=tested).eval()
    classifier.num_classes = _probe(classifier, probes)
    return classifier


def pick_logits(output: Any, choice: Output | None) -> Any:
    """Return the logits of a model's output: the field `choice`, by default the field `logits` or the tensor itself."""
    if choice is None:
        return output if isinstance(output, Tensor) else contract.output_fields(output).get("logits", output)
    if callable(choice):
        return choice(output)
    if isinstance(output, Tensor):
        raise ValueError(f"expected a structured output for output={choice!r}, got a tensor: leave output= out")
    try:
        by_name = isinstance(choice, str) and not isinstance(output, Mapping)
        return getattr(output, str(choice)) if by_name else output[choice]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        found = f"{type(output).__name__} with {list(contract.output_fields(output))}: pass one of these as output="
        raise ValueError(f"expected the model's output to have {choice!r}, got {found}") from error


def num_classes(model: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)) -> int:
    """Return the number of classes that the model declares, or of its logits for images of `shape`."""
    declared = getattr(model, "num_classes", None)
    if isinstance(declared, int) and declared > 0:
        return declared
    images = _probe_images(model, None, shape)
    logits = pick_logits(_attempt(model, images), None)
    contract.check_logit_form(logits, images)
    return int(logits.shape[1])


def first_layers(
    mean: Channels | None, std: Channels | None, size: int | tuple[int, int] | None, channels: int
) -> nn.Sequential:
    """Return the layers that resize images and normalise their channels, as far as these options are given."""
    resize = [] if size is None else [Resize(size)]
    return nn.Sequential(*resize, *_normalisation(mean, std, channels))


def _normalisation(mean: Channels | None, std: Channels | None, channels: int) -> list[nn.Module]:
    if mean is None and std is None:
        return []
    means = _per_channel("mean", 0.0 if mean is None else mean, channels)
    stds = _per_channel("std", 1.0 if std is None else std, channels)
    if min(stds) <= 0:
        raise ValueError(f"expected std above 0, got {stds}: it divides the images")
    if max(map(abs, means)) > 1 or max(stds) > 1:
        found = f"mean {means} and std {stds}: if they are for bytes, divide both by 255"
        raise ValueError(f"expected mean and std for images in [0, 1], got {found}")
    return [Normalize(means, stds)]


def _per_channel(name: str, value: Channels, channels: int) -> list[float]:
    try:
        values = torch.as_tensor(value, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "pass 0.5, or one number per channel"
        raise ValueError(f"expected {name} as a number or {channels} numbers, got {value!r}: {hint}") from error
    if len(values) not in (1, channels):
        raise ValueError(f"expected {name} with 1 or {channels} values (one per channel), got {len(values)}")
    return values * (channels // len(values))


def _probe_images(model: nn.Module, images: Tensor | None, shape: tuple[int, int, int]) -> Tensor:
    if images is None:
        images = torch.rand(PROBES, *shape, generator=generator(0, "probe", *shape))
    contract.check_images(images)
    if len(images) == 0:
        raise ValueError("expected at least one image to test the model, got an empty batch: leave images= out")
    weights = next((weight for weight in model.parameters() if weight.is_floating_point()), images)
    return images[:PROBES].detach().to(weights.device, weights.dtype)


def _probe(classifier: Classifier, images: Tensor) -> int:
    """Return the number of classes of a valid classifier, or raise an error that explains what is invalid."""
    logits = pick_logits(_attempt(lambda x: classifier.model(classifier.first(x)), images), classifier.output)
    contract.check_logits(logits, images)
    contract.check_two_classes(logits)
    contract.check_not_probabilities(logits)
    if not callable(classifier.output):  # such a function may return them on purpose
        warn_log_probabilities(classifier.model, logits)
    with torch.no_grad():
        again, half = classifier(images), classifier(images[: len(images) // 2])
    check_repeatable(logits, again)
    # Looser than for a repeated call: kernels for another batch size round differently.
    if not _agree(logits[: len(half)], half, 1e-2):
        found = "others in a smaller batch: use batch norm with running statistics (track_running_stats=True)"
        raise ValueError(f"expected logits not to depend on the other images of the batch, got {found}")
    return int(logits.shape[1])


def check_repeatable(logits: Tensor, again: Tensor) -> None:
    """Raise an error if two calls of a model with the same images returned different logits."""
    if not _agree(logits, again, 1e-4):
        hint = "it draws random numbers (dropout or noise?); remove them, or fix them as ads.SmoothedClassifier does"
        raise ValueError(f"expected the same logits for the same images, got different ones in two calls: {hint}")


def _attempt(model: Callable[[Tensor], Any], images: Tensor) -> Any:
    try:
        with torch.no_grad(), contract.trusted_images():
            return model(images)
    except Exception as error:
        wanted = f"a model that accepts images of shape {tuple(images.shape)} in [0, 1]"
        hint = "pass ads.wrap the images= or shape= it accepts, or size= to resize them"
        raise ValueError(f"expected {wanted}, got {type(error).__name__}: {error}; {hint}") from error


def _agree(one: Tensor, other: Tensor, tolerance: float) -> bool:
    scale = one.abs().max().clamp_min(torch.finfo(one.dtype).tiny)
    return one.shape == other.shape and (len(one) == 0 or bool(((one - other).abs() <= tolerance * scale).all()))
