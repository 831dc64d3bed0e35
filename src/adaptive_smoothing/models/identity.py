"""The identity of a model: its weights, its other tensors, its preprocessing, and its logits for fixed images.

All but the logits are compared exactly. They do not depend on the device or the memory layout, nor on the dtype if a
cast keeps every value. Other tensors are compared only if both models have them. A used model may hold more: timm's
LeViT keeps attention biases. The logits are compared approximately: they detect code or settings that are neither in a
tensor nor in a layer of `wrap`, such as another activation function. Names of classes are not part of the identity,
because they change between versions of libraries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_eval, trusted_images
from adaptive_smoothing.models.digest import all_tensors, attribute_tensors, dense, describe, extra_states, tensor_bytes
from adaptive_smoothing.models.inference import HALF, copy_on_cpu, full_precision
from adaptive_smoothing.models.resnet import Normalize
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import Classifier, Resize, check_repeatable, pick_logits
from adaptive_smoothing.noise import generator

# The number of images whose logits are part of an identity.
IMAGES = 2
# The shapes of images that are tried, after the one that a model declares.
SHAPES = (
    *((3, 32, 32), (3, 224, 224), (1, 28, 28), (1, 32, 32), (3, 28, 28), (3, 64, 64), (3, 96, 96), (3, 299, 299)),
    *((1, 64, 64), (1, 224, 224)),
)
# Images that are larger by this many pixels are tried as well. They detect code that resizes images itself, which
# images of the first size cannot.
LARGER = 8
# Differences of logits, relative to the largest, that rounding explains: on another device or in another version of
# torch, and in the same process.
TOLERANCE, SAME_PROCESS = 1e-4, 1e-5
# Older versions stored the logits of five classes, some of them computed in lower precision (TF32).
OLD_CLASSES, OLD_TOLERANCE = 5, 0.02


@dataclass(frozen=True)
class Identity:
    """What `save_pretrained` stores about a base classifier, and compares when it is loaded.

    Args:
        weights: sha256 of all parameters and buffers, without those of the preprocessing.
        preprocessing: the settings of the layers around the network, in order: of `wrap` and of `SmoothedClassifier`.
        shape: the shape of the test images, or None if the model accepts none of `SHAPES`.
        logits: the logits for each test image; those of a copy in float32 if the model is in half precision, which
            rounds too coarsely, and () if that copy does not run.
        state: a sha256 of each tensor that is neither a parameter nor a buffer, and of each `get_extra_state`. None:
            an older version stored the identity.
        larger: the logits for images that are larger by `LARGER`; () if the model cannot be copied to a CPU, or does
            not accept them.
    """

    weights: str
    preprocessing: tuple[Mapping[str, Any], ...] = ()
    shape: tuple[int, ...] | None = None
    logits: tuple[float, ...] = ()
    state: Mapping[str, str] | None = field(default_factory=dict)
    larger: tuple[float, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...] | None = None) -> Identity:
        """Return the identity of a model, which must be in eval mode.

        Args:
            shape: the shape of the test images; by default the first that the model accepts.
        """
        check_eval(model)  # in train mode, a forward pass would change the statistics of batch norms
        shapes = _shapes(model) if shape is None else [shape]
        tests = (_test(each, shapes, repeat=shape is None, copied=each is not model) for each in _copies(model))
        found = next((test for test in tests if test is not None), None)
        found = found or _Tested(_weights_digest(model), state=_tensor_state(model))
        state = {name: digest for name, (_, digest) in sorted(found.state.items())}
        state |= {name: _plain_digest(value) for name, value in extra_states(model).items()}
        layers = tuple(_preprocessing(model))
        return cls(found.weights, layers, found.shape, found.logits, state, found.larger)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Identity:
        """Return the identity that `to_json` described."""
        shape = content.get("shape")
        logits, larger = (tuple(content.get(key, ())) for key in ("logits", "larger"))
        layers = tuple(content["preprocessing"])
        return cls(content["weights"], layers, shape and tuple(shape), logits, content.get("state"), larger)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name in ("preprocessing", "state")}

    def differences(self, expected: Identity, tolerance: float = TOLERANCE) -> str:
        """Return how this model differs from the expected one, as text; "" if it is the same."""
        differences = _preprocessing_differences(self.preprocessing, expected.preprocessing)
        if self.weights != expected.weights:
            differences.append(f"other weights (digest {self.weights[:12]} instead of {expected.weights[:12]})")
        stored = expected.state or {}
        changed = [name for name, digest in (self.state or {}).items() if stored.get(name, digest) != digest]
        differences += [f"another value of {name}, which is neither a parameter nor a buffer" for name in changed]
        return ", ".join(differences) or _logit_differences(self, expected, tolerance)


def _weights_digest(model: nn.Module) -> str:
    layers = (module for module in model.modules() if isinstance(module, Normalize))
    preprocessing = {id(tensor) for layer in layers for tensor in layer.buffers()}
    digest = hashlib.sha256()
    for name, tensor in sorted(all_tensors(model).items()):
        if id(tensor) not in preprocessing:
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(_canonical(tensor)))
    return digest.hexdigest()


def _tensor_state(model: nn.Module) -> dict[str, tuple[Tensor, str]]:
    """Return each tensor that is neither a parameter nor a buffer, and its sha256, by name."""
    found = attribute_tensors(model).items()
    return {name: (tensor, hashlib.sha256(tensor_bytes(_canonical(tensor))).hexdigest()) for name, tensor in found}


def _unchanged(
    before: Mapping[str, tuple[Tensor, str]], after: Mapping[str, tuple[Tensor, str]]
) -> dict[str, tuple[Tensor, str]]:
    """Return the tensors that a forward pass left alone: those that it computes are not part of the model."""
    same = (name for name in before.keys() & after.keys() if before[name][0] is after[name][0])
    return {name: after[name] for name in same if before[name][1] == after[name][1]}


def _plain_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()


def _canonical(tensor: Tensor) -> Tensor:
    """Return floating-point numbers in float32 if that keeps every value, so that lossless casts change no digest."""
    if not tensor.is_floating_point():
        return tensor
    tensor = dense(tensor)
    single = tensor.float()
    return single if tensor.dtype != torch.float64 or torch.equal(single.double(), tensor) else tensor


def _preprocessing(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the settings of each layer that resizes, normalises or adds noise, and the field that is used as logits."""
    for layer in model.modules():
        if isinstance(layer, Classifier) and layer.output is not None:
            yield {"output": "a function" if callable(layer.output) else layer.output}
        elif isinstance(layer, Resize):
            yield {"size": list(layer.size), "resize": layer.MODE}
        elif isinstance(layer, Normalize):
            yield {"mean": layer.mean.flatten().tolist(), "std": layer.std.flatten().tolist()}
        elif isinstance(layer, SmoothedClassifier):
            yield {name: getattr(layer, name) for name in ("sigma", "samples", "seed", "hard")}


def _preprocessing_differences(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> list[str]:
    if [list(layer) for layer in found] != [list(layer) for layer in expected]:
        return [f"preprocessing {_text([*found])} instead of {_text([*expected])}"]
    layers = zip(found, expected, strict=True)
    changed = ((key, layer[key], value) for layer, stored in layers for key, value in stored.items())
    return [f"{key} {_text(value)} instead of {_text(wanted)}" for key, value, wanted in changed if value != wanted]


def _text(value: Any) -> str:
    """Return a setting for an error message: (0.5, 0.5, 0.5), 64 for the size (64, 64)."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_text(part)}" for key, part in value.items())
    if not isinstance(value, list):
        return f"{value:.7g}" if isinstance(value, float) else str(value)
    if value and isinstance(value[0], Mapping):
        return "; ".join(map(_text, value))
    if len(value) == 2 and value[0] == value[1] and isinstance(value[0], int):
        return str(value[0])
    return f"({', '.join(map(_text, value))})" if value else "none"


@dataclass(frozen=True)
class _Tested:
    """What a forward pass shows: the fields of `Identity`, and the tensors that it leaves alone, with their sha256."""

    weights: str
    shape: tuple[int, ...] | None = None
    logits: tuple[float, ...] = ()
    larger: tuple[float, ...] = ()
    state: Mapping[str, tuple[Tensor, str]] = field(default_factory=dict)


def _copies(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a copy on a CPU, in float32 if the model is in half precision. Then yield the model if it may accept more.

    A copy, because a forward pass may change buffers. On a CPU, because an image of a wrong size is an exception there,
    and can end the process on a GPU. But not every model can be copied, and some code runs on a GPU only.
    """
    weight, copied = _a_weight(model), None
    with suppress(Exception):  # a module can hold what cannot be copied
        copied = copy_on_cpu(model, to_float32=weight.dtype in HALF)
    if copied is not None:
        yield copied
    if copied is None or weight.device.type != "cpu" or weight.dtype in HALF:
        yield model


def _test(model: nn.Module, shapes: Iterable[tuple[int, ...]], *, repeat: bool, copied: bool) -> _Tested | None:
    """Return what a forward pass shows, for the first shape that the model accepts; None if it accepts none.

    Args:
        repeat: raise an error if a second pass gives other logits.
        copied: whether this is a copy, so that larger images may change its buffers.
    """
    weight = _a_weight(model)
    for shape in shapes:
        before = _tensor_state(model)
        if (logits := _logits(model, shape)) is None:
            continue
        # After a pass, which may fill buffers: so a model that was used has the same digest as one that was not.
        digest, state = _weights_digest(model), _unchanged(before, _tensor_state(model))
        if weight.dtype in HALF:
            return _Tested(digest, shape, state=state)
        if repeat:
            check_repeatable(*(torch.tensor(numbers) for numbers in (logits, _logits(model, shape) or ())))
        larger = None
        if copied and len(shape) == 3:
            larger = _logits(model, (shape[0], shape[1] + LARGER, shape[2] + LARGER))
        return _Tested(digest, shape, logits, larger or (), state)
    return None


def _logits(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    """Return the logits for each test image of a shape, or None if the model does not accept it."""
    weight = _a_weight(model)
    images = torch.rand(IMAGES, *shape, generator=generator(0, "identity", *shape))
    exact = torch.autocast(weight.device.type, enabled=False)
    try:
        with torch.no_grad(), full_precision(), exact, trusted_images():
            logits = pick_logits(model(images.to(weight)), None)
        numbers = logits.double().flatten().tolist()
    except Exception:  # a model can raise any error for images of a shape that it does not accept
        return None
    return tuple(float(f"{number:.8g}") for number in numbers) if all(map(math.isfinite, numbers)) else None


def _a_weight(model: nn.Module) -> Tensor:
    """Return a weight of a model, for its device and dtype."""
    return next((weight for weight in model.parameters() if weight.is_floating_point()), torch.empty(0))


def _shapes(model: nn.Module) -> Iterable[tuple[int, ...]]:
    """Return the shapes to try: first the one that a model declares, as `Classifier` does."""
    declared: Any = getattr(model, "shape", None)
    is_shape = isinstance(declared, tuple | list) and len(declared) == 3
    if not is_shape or not all(isinstance(side, int) and side > 0 for side in declared):
        return SHAPES
    return (tuple(declared), *SHAPES)


def _logit_differences(found: Identity, expected: Identity, tolerance: float) -> str:
    """Return how the logits differ, as text; "" if the tolerance explains it or they cannot be compared."""
    if found.shape is None and expected.logits:
        return f"the same weights but no finite logits for images of shape {expected.shape}: it does not accept them"
    if found.shape != expected.shape and expected.logits:
        shapes = f"{found.shape} instead of {expected.shape}"
        return f"the same weights but logits for images of shape {shapes}: its code or settings changed"
    if not (logits := found.logits) or not expected.logits:
        return ""
    if expected.state is None and len(expected.logits) <= IMAGES * OLD_CLASSES:
        classes, tolerance = len(logits) // IMAGES, OLD_TOLERANCE
        logits = tuple(number for position, number in enumerate(logits) if position % classes < OLD_CLASSES)
    apart = _distance(logits, expected.logits)
    if found.larger and expected.larger:  # not for a model that cannot be copied, nor in older files
        apart = max(apart, _distance(found.larger, expected.larger))
    if apart <= tolerance:
        return ""
    return f"the same weights but logits that differ by {100 * apart:.2g} %: its code or settings changed"


def _distance(found: tuple[float, ...], expected: tuple[float, ...]) -> float:
    """Return the largest difference relative to the largest expected number; 1 if the numbers of both differ."""
    if len(found) != len(expected):
        return 1.0
    largest = max(map(abs, expected), default=0.0)
    differences = (abs(number - wanted) for number, wanted in zip(found, expected, strict=True))
    return max(differences, default=0.0) / max(largest, 1e-6)
