"""The identity of a model: its weights, its other tensors, its preprocessing, and its logits for two fixed images.

All but the logits are compared exactly. They do not depend on the device or the memory layout, nor on the dtype if a
cast keeps every value. The logits are compared approximately: they detect code or settings that are neither in a tensor
nor in a layer of `wrap`, such as another activation function. Names of classes are not part of the identity, because
they change between versions of libraries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_eval, trusted_images
from adaptive_smoothing.models.digest import all_tensors, attribute_tensors, describe, extra_states, tensor_bytes
from adaptive_smoothing.models.inference import full_precision
from adaptive_smoothing.models.resnet import Normalize
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import Classifier, Resize, pick_logits
from adaptive_smoothing.noise import generator

# The number of images whose logits are part of an identity.
IMAGES = 2
# The shapes of images that are tried, after the one that a model declares.
SHAPES = ((3, 32, 32), (3, 224, 224))
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
        logits: the logits for each test image.
        state: a sha256 of each tensor that is neither a parameter nor a buffer, and of each `get_extra_state`.
    """

    weights: str
    preprocessing: tuple[Mapping[str, Any], ...] = ()
    shape: tuple[int, ...] | None = None
    logits: tuple[float, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Identity:
        """Return the identity of a model, which must be in eval mode."""
        check_eval(model)  # in train mode, a forward pass would change the statistics of batch norms
        before = _tensor_state(model)
        shape, logits = _test_logits(model)
        state = _unchanged(before, _tensor_state(model))
        state |= {name: _plain_digest(value) for name, value in extra_states(model).items()}
        return cls(_weights_digest(model), tuple(_preprocessing(model)), shape, logits, state)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Identity:
        """Return the identity that `to_json` described."""
        shape = content.get("shape")
        layers = tuple(content["preprocessing"])
        logits, state = tuple(content.get("logits", ())), content.get("state", {})
        return cls(content["weights"], layers, shape and tuple(shape), logits, state)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name == "preprocessing"}

    def differences(self, expected: Identity, tolerance: float = TOLERANCE) -> str:
        """Return how this model differs from the expected one, as text; "" if it is the same."""
        found = _preprocessing_differences(self.preprocessing, expected.preprocessing)
        if self.weights != expected.weights:
            found.append(f"other weights (digest {self.weights[:12]} instead of {expected.weights[:12]})")
        changed = [name for name, digest in self.state.items() if expected.state.get(name, digest) != digest]
        found += [f"another value of {name}, which is neither a parameter nor a buffer" for name in changed]
        if not found and (apart := _distance(self, expected, tolerance)):
            found.append(
                f"the same weights but logits that differ by {100 * apart:.2g} %: its code or settings changed"
            )
        return ", ".join(found)


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


def _unchanged(before: Mapping[str, tuple[Tensor, str]], after: Mapping[str, tuple[Tensor, str]]) -> dict[str, str]:
    """Return the sha256 of the tensors that a forward pass left alone: those it computes are not part of the model."""
    same = (name for name in before.keys() & after.keys() if before[name][0] is after[name][0])
    return {name: after[name][1] for name in sorted(same) if before[name][1] == after[name][1]}


def _plain_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()


def _canonical(tensor: Tensor) -> Tensor:
    """Return floating-point numbers in float32 if that keeps every value, so that lossless casts change no digest."""
    if not tensor.is_floating_point():
        return tensor
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


def _preprocessing_differences(found: Iterable[Mapping[str, Any]], expected: Iterable[Mapping[str, Any]]) -> list[str]:
    mine, theirs = list(found), list(expected)
    if [list(layer) for layer in mine] != [list(layer) for layer in theirs]:
        return [f"preprocessing {_text(mine)} instead of {_text(theirs)}"]
    pairs = zip(mine, theirs, strict=True)
    changed = ((key, new[key], old[key]) for new, old in pairs for key in old if new[key] != old[key])
    return [f"{key} {_text(new)} instead of {_text(old)}" for key, new, old in changed]


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


def _test_logits(model: nn.Module) -> tuple[tuple[int, ...] | None, tuple[float, ...]]:
    """Return the shape of the test images and the logits for each; None and () if the model accepts no shape."""
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), torch.empty(0))
    if weight.dtype in (torch.float16, torch.bfloat16):  # they round too coarsely to be compared
        return None, ()
    for shape in _shapes(model):
        try:
            images = torch.rand(IMAGES, *shape, generator=generator(0, "identity", *shape))
            exact = torch.autocast(weight.device.type, enabled=False)
            with torch.no_grad(), full_precision(), exact, trusted_images():
                logits = pick_logits(model(images.to(weight)), None)
            numbers = logits.double().flatten().tolist()
        except Exception:  # a model can raise any error for images of a shape that it does not accept
            continue
        if all(map(math.isfinite, numbers)):
            return shape, tuple(float(f"{number:.8g}") for number in numbers)
    return None, ()


def _shapes(model: nn.Module) -> Iterable[tuple[int, ...]]:
    """Return the shapes to try: first the one that a model declares, as `Classifier` does."""
    declared: Any = getattr(model, "shape", None)
    if not isinstance(declared, tuple | list) or not all(isinstance(side, int) for side in declared):
        return SHAPES
    return (tuple(declared), *SHAPES)


def _distance(found: Identity, expected: Identity, tolerance: float) -> float:
    """Return the largest difference of the logits relative to the largest logit; 0 if the tolerance explains it."""
    mine, theirs = found.logits, expected.logits
    if found.shape != expected.shape or not mine or not theirs:
        return 0.0
    if len(theirs) == IMAGES * OLD_CLASSES < len(mine):
        classes, tolerance = len(mine) // IMAGES, OLD_TOLERANCE
        mine = tuple(number for row in range(IMAGES) for number in mine[row * classes :][:OLD_CLASSES])
    if len(mine) != len(theirs):
        return 1.0
    apart = max(abs(one - other) for one, other in zip(mine, theirs, strict=True)) / max(*map(abs, theirs), 1e-6)
    return apart if apart > tolerance else 0.0
